//! `flashmesh user`.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use crate::server::{Tokens, add_user, hash_password};
use crate::{Error, Result};

use super::arguments::UserCommand;

/// Adds a user, or prints a token.
pub(super) fn run(command: UserCommand) -> Result<ExitCode> {
    match command {
        UserCommand::Add { name, users, admin } => {
            let hash = hash_password(&password(&name)?)?;
            add_user(&users, &name, &hash, admin)?;
            let may = match admin {
                true => "may do everything",
                false => "may read all tables",
            };
            println!(
                "'{name}' {may}; {} says so and can be edited",
                users.display()
            );
        }
        UserCommand::Token {
            name,
            token_secret,
            users,
            expires,
        } => {
            let tokens = Tokens::from_file(&token_secret)?;
            let tokens = match users {
                Some(users) => tokens.for_users(&users)?,
                None => tokens,
            };
            println!("{}", tokens.sign(&name, None, None, expires)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A password from the terminal, unseen, or from standard input: never from the command line,
/// which other users can read.
pub(super) fn password(name: &str) -> Result<String> {
    let reading = |e| Error::io("reading the password", e);
    let stdin = std::io::stdin();
    let hidden = match stdin.is_terminal() {
        true => {
            eprint!("Password for '{name}': ");
            std::io::stderr().flush().map_err(reading)?;
            Some(Hidden::start().map_err(reading)?)
        }
        false => None,
    };
    let mut line = String::new();
    stdin.lock().read_line(&mut line).map_err(reading)?;
    if hidden.is_some() {
        eprintln!();
    }
    if line.is_empty() {
        return Err(Error::usage(format!(
            "there is no password for '{name}' on standard input"
        )));
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_string())
}

/// Keeps the terminal from showing what is typed.
struct Hidden(libc::termios);

impl Hidden {
    fn start() -> std::io::Result<Self> {
        // SAFETY: termios is plain data, for which zeros are valid.
        let mut shown: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a termios of ours.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, &mut shown) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut hidden = shown;
        hidden.c_lflag &= !libc::ECHO;
        // SAFETY: as above.
        if unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &hidden) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self(shown))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // SAFETY: the pointer is to the termios that was read at the start.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &self.0) };
    }
}
