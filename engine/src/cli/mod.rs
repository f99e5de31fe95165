//! The command line: its arguments, and what each of them starts.

mod arguments;
mod backup;
mod demo;
mod devices;
mod escape;
mod fsck;
mod kernel;
mod load;
mod node;
mod output;
mod rack;
mod serve;
mod shell;
mod signals;
mod tpch;
mod user;

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use flashmesh_storage::accelerator::xrt::{HOST_ARGUMENT, host_main};

use crate::threads::{cores, runtime};
use crate::{Engine, EngineOptions, Error, Result};
use arguments::{Arguments, Command, ConnectArguments, Source};
use output::Output;
use shell::{Login, Remote, Tls};

/// Runs a command line, of which the first argument is the command itself. Exit codes: 0 done, 1
/// an error (a statement failed, `fsck` found something), 2 wrong arguments, 128 + n ended by
/// signal n; for the last two the process ends here.
pub fn main(command_line: impl IntoIterator<Item = OsString>) -> ExitCode {
    let command_line: Vec<OsString> = command_line.into_iter().collect();
    // The process that a device's runtime lives in, started by flashmesh itself: nothing else of
    // the command may be there, not even its threads.
    if command_line
        .get(1)
        .is_some_and(|first| first == HOST_ARGUMENT)
    {
        host_main();
    }
    let arguments = Arguments::of_command_line(command_line);
    let runtime = match runtime("flashmesh", cores()) {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(run(arguments));
    // A cancelled query may still have a thread inside a read; it is not worth waiting for.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result {
        Ok(code) => code,
        Err(error) => {
            escape::complain(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Some(Command::Load(load)) => load::run(&arguments.engine, load).await,
        Some(Command::Backup(backup)) => backup::back_up(&arguments.engine, backup).await,
        Some(Command::Backups(backups)) => backup::list(backups).await,
        Some(Command::Restore(restore)) => backup::restore(&arguments.engine, restore).await,
        Some(Command::Fsck(fsck)) => fsck::run(&arguments.engine, fsck).await,
        Some(Command::Serve(serve)) => serve::run(&arguments.engine, *serve).await,
        Some(Command::User(command)) => user::run(command),
        Some(Command::Devices) => devices::run(arguments.engine.xclbin.as_deref()),
        Some(Command::Kernel(command)) => kernel::run(command).await,
        Some(Command::Rack(command)) => rack::run(&arguments.engine, command).await,
        Some(Command::Node(node)) => node::run(&arguments.engine, node).await,
        Some(Command::Completions { shell }) => {
            let mut command = <Arguments as clap::CommandFactory>::command();
            clap_complete::generate(shell, &mut command, "flashmesh", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Demo(demo)) => demo::run(&arguments.engine, demo).await,
        None => run_sql(arguments).await,
    }
}

/// `-c`, `-f`, SQL from a pipe, or the shell.
async fn run_sql(arguments: Arguments) -> Result<ExitCode> {
    let interactive = arguments.sources.is_empty() && std::io::stdin().is_terminal();
    // A rack file stands for the database of its rack.
    let named = arguments.engine.db.as_deref().and_then(Path::to_str);
    let rack = named.filter(|named| rack::is_rack_file(named));
    if rack.is_some() && arguments.engine.read_only {
        return Err(Error::usage("--read-only is for folders, not for racks"));
    }
    if let Some(address) = arguments.server.connect.as_deref().or(rack) {
        let remote = connect(address, &arguments.server).await?;
        if interactive {
            shell::run(Arc::new(remote), None, &arguments.shell, &arguments.output).await?;
            return Ok(ExitCode::SUCCESS);
        }
        signals::end_on_signal([], true)?;
        let scripts = scripts(&arguments.sources)?;
        let output = Output::new(&arguments.output);
        return shell::run_scripts(Arc::new(remote), None, output, &scripts).await;
    }
    let engine = Engine::open(arguments.engine.options()?)?;
    signals::end_on_signal(engine.temporary_folders(), !interactive)?;
    let backend = shell::Local::new(&engine.session()?);
    // The database goes once another one is opened in its place.
    drop(engine);
    let Arguments {
        engine,
        shell,
        output,
        sources,
        ..
    } = arguments;
    let open = move |folder: Option<&Path>| {
        let options = EngineOptions {
            path: folder.map(Path::to_path_buf),
            ..engine.options()?
        };
        let engine = Engine::open(options)?;
        signals::remove_at_end(engine.temporary_folders());
        let session = engine.session()?;
        Ok(Arc::new(shell::Local::new(&session)) as _)
    };
    let open: Option<shell::Open> = Some(Box::new(open));
    if interactive {
        shell::run(Arc::new(backend), open, &shell, &output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let scripts = scripts(&sources)?;
    shell::run_scripts(Arc::new(backend), open, Output::new(&output), &scripts).await
}

/// Connects as the arguments and the environment say.
async fn connect(address: &str, arguments: &ConnectArguments) -> Result<Remote> {
    // Arguments are seen by all users of the machine, a process's environment is not.
    let secret = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let login = match (secret("FLASHMESH_TOKEN"), &arguments.user) {
        (Some(token), _) => Login::Token(token),
        (None, None) => Login::Nobody,
        (None, Some(user)) => {
            let password = match secret("FLASHMESH_PASSWORD") {
                Some(password) => password,
                None => user::password(user)?,
            };
            Login::Password(user.clone(), password)
        }
    };
    let tls = Tls {
        ca: arguments.tls_ca.clone(),
        identity: arguments
            .client_cert
            .clone()
            .zip(arguments.client_key.clone()),
    };
    match rack::addresses(address)? {
        Some(addresses) => Remote::connect_any(&addresses, login, &tls).await,
        None => Remote::connect(address, login, &tls).await,
    }
}

/// The texts of all sources: a file that is missing is found before anything runs.
fn scripts(sources: &[Source]) -> Result<Vec<String>> {
    let sources = match sources {
        [] => &[Source::File("-".into())],
        sources => sources,
    };
    let text = |source: &Source| match source {
        Source::Sql(sql) => Ok(sql.clone()),
        Source::File(path) => read_script(path),
    };
    sources.iter().map(text).collect()
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
