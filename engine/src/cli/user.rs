//! `flashmesh user`.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use crate::accounts::hash_password;
use crate::server::{Tokens, add_user, list_users, remove_user, set_password};
use crate::{Error, Result};

use super::arguments::UserCommand;

/// Adds, changes, lists or removes users, or prints a token.
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
        UserCommand::Passwd { name, users } => {
            set_password(&users, &name, &hash_password(&password(&name)?)?)?;
            println!("'{name}' has a new password");
        }
        UserCommand::List { users } => {
            for (name, may) in list_users(&users)? {
                println!("{}  {may}", super::escape::shown(&name));
            }
        }
        UserCommand::Remove { name, users } => {
            remove_user(&users, &name)?;
            println!("'{name}' is no user any more");
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
    match &hidden {
        Some(_) => {
            let typed = typed(stdin.lock()).map_err(reading)?;
            eprintln!();
            let Some(typed) = typed else {
                drop(hidden);
                // As a shell tells that it was Ctrl-C.
                std::process::exit(128 + libc::SIGINT);
            };
            line = typed;
        }
        None => drop(stdin.lock().read_line(&mut line).map_err(reading)?),
    }
    if line.is_empty() {
        return Err(Error::usage(format!(
            "there is no password for '{name}' on standard input"
        )));
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_string())
}

/// A line from a terminal that leaves the keys to us; `None` where Ctrl-C ended it.
fn typed(stdin: impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    for byte in stdin.bytes() {
        match byte? {
            INTERRUPT => return Ok(None),
            b'\n' | b'\r' => break,
            END if line.is_empty() => return Ok(Some(String::new())),
            END => break,
            ERASE_LINE => line.clear(),
            BACKSPACE | DELETE => {
                // A character may be several bytes.
                while line.pop().is_some_and(|byte: u8| byte & 0xc0 == 0x80) {}
            }
            byte => line.push(byte),
        }
    }
    line.push(b'\n');
    let text = String::from_utf8(line);
    text.map(Some)
        .map_err(|e| std::io::Error::new(std::io::ErrorKind::InvalidData, e))
}

/// Keys that a terminal would see to itself.
const INTERRUPT: u8 = 3;
const END: u8 = 4;
const BACKSPACE: u8 = 8;
const ERASE_LINE: u8 = 21;
const DELETE: u8 = 127;

/// Keeps the terminal from showing what is typed, and from ending the process at Ctrl-C, which would
/// leave it like that.
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
        hidden.c_lflag &= !(libc::ECHO | libc::ICANON | libc::ISIG);
        (hidden.c_cc[libc::VMIN], hidden.c_cc[libc::VTIME]) = (1, 0);
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

#[cfg(test)]
mod tests {
    use super::typed;

    #[test]
    fn keys_of_the_terminal_work_as_elsewhere() {
        let line = |keys: &str| typed(keys.as_bytes()).unwrap();
        assert_eq!(line("secret\rmore"), Some("secret\n".into()));
        assert_eq!(line("se\u{8}\u{7f}topé\u{7f}\n"), Some("top\n".into()));
        assert_eq!(line("wrong\u{15}right\n"), Some("right\n".into()));
        assert_eq!(line("sec\u{3}ret\n"), None);
        assert_eq!(line("\u{4}"), Some(String::new()));
        assert!(typed([0xff, b'\n'].as_slice()).is_err());
    }
}
