//! Scripts: SQL and commands from -c, -f or a pipe.

use std::process::ExitCode;
use std::sync::Arc;

use super::backend::{Backend, Statement};
use super::commands::{Command, parse};
use super::lex::{Piece, pieces};
use super::{Open, Outcome, Shell};
use crate::Result;
use crate::cli::output::Output;

/// What a script does next.
enum Step<'a> {
    /// Runs a statement. Places in its errors are in this text, before which so many lines stand.
    Run(Statement, &'a str, usize),
    Obey(Command),
}

/// Runs scripts one after the other, up to the first statement or command that fails; results go to
/// `output`. The exit code says whether one did.
///
/// # Errors
/// What the shell itself can't go on after. What a script did wrong has been told.
pub(in crate::cli) async fn run_scripts(
    backend: Arc<dyn Backend>,
    open: Option<Open>,
    output: Output,
    scripts: &[String],
) -> Result<ExitCode> {
    let mut shell = Shell::new(backend, open, output);
    for script in scripts {
        match shell.run_script(script).await {
            Outcome::Done => {}
            Outcome::Quit => break,
            Outcome::Stopped => return Ok(ExitCode::FAILURE),
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Shell {
    /// Runs all that a script has. What can't be parsed anywhere in it runs nothing.
    async fn run_script(&mut self, script: &str) -> Outcome {
        let pieces = pieces(script);
        let mut steps = Vec::new();
        for piece in &pieces {
            match piece {
                Piece::Command(line) => match parse(line) {
                    Ok(command) => steps.push(Step::Obey(command)),
                    Err(message) => return self.refused(&message),
                },
                Piece::Sql(sql, lines) => match self.backend.parse(sql) {
                    Ok(statements) => {
                        let run = |(statement, text)| Step::Run(statement, text, *lines);
                        steps.extend(statements.into_iter().map(run));
                    }
                    Err(error) => return self.failed(&error, sql, *lines).await,
                },
            }
        }
        for step in steps {
            let done = match step {
                Step::Obey(command) => self.obey(command, 0).await,
                Step::Run(statement, text, lines) => {
                    match self.run_statement(statement, None).await {
                        Ok(outcome) => outcome,
                        Err(error) => self.failed(&error, text, lines).await,
                    }
                }
            };
            match done {
                Outcome::Done => {}
                ended => return ended,
            }
        }
        Outcome::Done
    }
}
