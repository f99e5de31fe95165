//! Arguments, and what each of them starts.

mod arguments;
mod demo;
mod fsck;
mod load;
mod output;
mod script;
mod shell;
mod signals;
mod tpch;

use std::io::{IsTerminal, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use flashmesh::{Engine, Error, Result};

use arguments::{Arguments, Command, Source};
use output::Output;

/// Runs the command line. Exit codes: 0 done, 1 an error (a statement failed, `fsck` found
/// something), 2 wrong arguments, 128 + n ended by signal n.
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::from_command_line();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: starting threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(run(arguments));
    // A cancelled query may still have a thread inside a read; it is not worth waiting for.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Some(Command::Load(load)) => load::run(&arguments.engine, load).await,
        Some(Command::Fsck) => fsck::run(&arguments.engine).await,
        Some(Command::Demo(demo)) => demo::run(&arguments.engine, demo).await,
        None => run_sql(arguments).await,
    }
}

/// `-c`, `-f`, SQL from a pipe, or the shell.
async fn run_sql(arguments: Arguments) -> Result<ExitCode> {
    let interactive = arguments.sources.is_empty() && std::io::stdin().is_terminal();
    let engine = Engine::open(arguments.engine.options()?)?;
    signals::end_on_signal(engine.temporary_folders(), !interactive)?;
    let session = engine.session()?;
    if interactive {
        let backend = Arc::new(shell::Local::new(&session));
        shell::run(backend, &arguments.output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    shell::locate_errors(&session);
    let sources = match arguments.sources.as_slice() {
        [] => &[Source::File("-".into())],
        sources => sources,
    };
    // All files first: a missing one is found before anything runs.
    let mut scripts = Vec::with_capacity(sources.len());
    for source in sources {
        scripts.push(match source {
            Source::Sql(sql) => sql.clone(),
            Source::File(path) => read_script(path)?,
        });
    }
    let mut output = Output::new(&arguments.output);
    for sql in scripts {
        match script::run(&session, &sql, &mut output).await {
            // Whoever read our output has seen enough.
            Err(_) if output.is_closed() => return Ok(ExitCode::SUCCESS),
            Err(error) => {
                let catalog = shell::catalog_of(&session).await.unwrap_or_default();
                eprintln!("{}", shell::report(&error, &sql, &catalog));
                return Ok(ExitCode::FAILURE);
            }
            Ok(()) => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read_script(path: &std::path::Path) -> Result<String> {
    if path.as_os_str() == "-" {
        let mut sql = String::new();
        std::io::stdin()
            .read_to_string(&mut sql)
            .map_err(|e| Error::io("reading SQL from standard input", e))?;
        return Ok(sql);
    }
    std::fs::read_to_string(path)
        .map_err(|e| Error::io(format!("reading SQL from {}", path.display()), e))
}
