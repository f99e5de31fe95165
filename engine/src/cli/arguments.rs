//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{EngineOptions, Error, Result};
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use flashmesh_storage::accelerator::sandbox::SandboxOptions;
use flashmesh_storage::kernel::Kind;

use super::node::NodeArguments;
use super::rack::RackCommand;
use super::shell::suggest;
use crate::server::telemetry::LogFormat;

const EXAMPLES: &str = "\
Examples:
  flashmesh                                        a shell on a temporary database
  flashmesh -c \"SELECT count(*) FROM 'x.parquet'\"  SQL straight on a file
  flashmesh sales                                  a shell on the database in folder sales
  flashmesh load --db sales orders data/*.parquet  load files into table orders
  flashmesh sales -f report.sql --format csv       run a script
  flashmesh fsck --db sales                        check every page
  flashmesh backup --db sales s3://backups/sales   copy what is new since the last backup
  flashmesh serve --db sales                       serve it to Flight SQL clients on this machine
  flashmesh --connect grpc://127.0.0.1:50051       a shell on a server
  flashmesh rack init r; flashmesh rack up r/rack.toml   four nodes on this machine, joined by a mesh
  flashmesh kernel new price_band                  a kernel of your own, in C++
  flashmesh demo                                   TPC-H, loaded and queried, with what pushdown saved";

/// SQL over tables that live on flash: filters, aggregates and top-k run beside the pages.
///
/// Without -c, -f or a command: a shell (.help there lists its commands), or the SQL that is piped
/// in. Without a database: a temporary one that is gone at exit.
#[derive(Debug, Parser)]
#[command(name = "flashmesh", version, after_help = EXAMPLES, after_long_help = EXAMPLES)]
#[command(subcommand_negates_reqs = true, disable_help_subcommand = true)]
pub(super) struct Arguments {
    /// Folder of the database, as --db; made when missing
    #[arg(value_name = "DATABASE", conflicts_with_all = ["db", "connect"])]
    database: Option<PathBuf>,
    /// Run this SQL (may be given several times; -c and -f run in the order given)
    #[arg(short = 'c', long = "command", value_name = "SQL")]
    sql: Vec<String>,
    /// Run the SQL in this file; - is standard input. The first statement that fails ends the run
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// What -c and -f said, in their order.
    #[arg(skip)]
    pub sources: Vec<Source>,
    #[command(flatten)]
    pub server: ConnectArguments,
    #[command(flatten)]
    pub engine: EngineArguments,
    #[command(flatten)]
    pub output: OutputArguments,
    #[command(flatten)]
    pub shell: ShellArguments,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Options of the shell.
#[derive(Debug, Args)]
#[command(next_help_heading = "Shell")]
pub(super) struct ShellArguments {
    /// What the shell runs first: statements, and lines for the shell [default: ~/.flashmeshrc, if that
    /// is there]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sql", "file"])]
    pub init: Option<PathBuf>,
    /// Run nothing first
    #[arg(long, conflicts_with = "init")]
    pub no_init: bool,
}

/// SQL to run.
#[derive(Debug)]
pub(super) enum Source {
    Sql(String),
    File(PathBuf),
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Load Parquet, CSV, JSON or Arrow files into a table
    Load(LoadArguments),
    /// Check every page of a database: checksum, identity, contents. Exit code 1 when one is torn. CHECK
    /// DATABASE does the same where the database is open
    Fsck(FsckArguments),
    /// Back a database up to a folder or an object store; only pages that the last backup lacks are
    /// copied. BACKUP DATABASE does the same where the database is open
    Backup(BackupArguments),
    /// List the backups of a folder or an object store, or read and check all pages of one
    Backups(BackupsArguments),
    /// Make a new database, in the folder --db, from a backup
    Restore(RestoreArguments),
    /// Serve the database to Flight SQL clients (ADBC, JDBC, flashmesh --connect)
    Serve(Box<ServeArguments>),
    /// Users and tokens of a server
    #[command(subcommand)]
    User(UserCommand),
    /// List devices behind XRT; with --xclbin, open the one that fits the container and show what it holds
    Devices,
    /// Kernels of your own: make, compile, test and look at them
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Racks of several nodes, joined by a mesh: make a rack file, start and stop its nodes, see how
    /// they are
    #[command(subcommand)]
    Rack(RackCommand),
    /// Run one node of a rack until SIGTERM or Ctrl-C (flashmesh rack up starts all of a machine)
    Node(NodeArguments),
    /// Print a script that completes flashmesh's arguments in a shell, e.g. in ~/.bashrc:
    /// source <(flashmesh completions bash)
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Make TPC-H data, load it, run a tour of queries and show what pushdown saved
    Demo(DemoArguments),
}

/// Options of the database, before or after a command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Database")]
pub(super) struct EngineArguments {
    /// Folder of the database; made when missing
    #[arg(long, value_name = "DIR", global = true)]
    pub db: Option<PathBuf>,
    /// Refuse every write; several processes may then read the database at once
    #[arg(long, global = true)]
    pub read_only: bool,
    /// What queries may hold in memory before they spill, e.g. 4GB [default: 3/4 of the memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, global = true)]
    memory_limit: Option<u64>,
    /// Page cache, e.g. 512MB [default: 1/4 of the memory, at most 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, global = true)]
    cache_size: Option<u64>,
    /// Cache of files in object stores, on the database's flash; 0: none [default: 10GiB, at most a
    /// quarter of the card]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_or_none, global = true)]
    external_cache_size: Option<u64>,
    /// Cache files on this machine's disks there too
    #[arg(long, global = true)]
    cache_local_files: bool,
    /// Threads of a query [default: one a core]
    #[arg(long, value_name = "N", global = true)]
    threads: Option<NonZeroUsize>,
    /// Where queries spill [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR", global = true)]
    spill_dir: Option<PathBuf>,
    /// What queries may spill at once, e.g. 50GB [default: 100GB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, global = true)]
    spill_limit: Option<u64>,
    /// Container of a device behind XRT, which SET flashmesh.accelerator = 'xrt' gives work to
    #[arg(long, value_name = "FILE", global = true)]
    pub xclbin: Option<PathBuf>,
    /// Memory that one instance of a user's kernel may take [default: 256 MiB; a kernel's manifest may ask
    /// for less]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, global = true)]
    kernel_memory: Option<u64>,
    /// Time that one call of a user's kernel may take, e.g. 2s [default: 10s; a kernel's manifest
    /// may ask for less]
    #[arg(long, value_name = "TIME", value_parser = parse_time, global = true)]
    kernel_time: Option<Duration>,
    /// Memory that all kernels of a query may take together [default: 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, global = true)]
    kernel_query_memory: Option<u64>,
    /// Time that all calls of kernels in a query may take together, over all threads [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_time, global = true)]
    kernel_query_time: Option<Duration>,
}

/// Options of `flashmesh backup`.
#[derive(Debug, Args)]
pub(super) struct BackupArguments {
    /// Folder, or URL of one: s3://bucket/folder, gs://bucket/folder
    #[arg(value_name = "PLACE")]
    pub to: String,
    /// Remove all backups there but the last N, the new one among them
    #[arg(long, value_name = "N")]
    pub keep: Option<u32>,
    #[command(flatten)]
    pub server: ConnectArguments,
}

/// Options of `flashmesh fsck`.
#[derive(Debug, Args)]
pub(super) struct FsckArguments {
    #[command(flatten)]
    pub server: ConnectArguments,
}

/// Options of `flashmesh backups`.
#[derive(Debug, Args)]
pub(super) struct BackupsArguments {
    /// Folder, or URL of one: s3://bucket/folder, gs://bucket/folder
    #[arg(value_name = "PLACE")]
    pub from: String,
    /// Only this one
    #[arg(long, value_name = "N")]
    pub number: Option<u32>,
    /// Read all pages of it, or of the last one, and check them
    #[arg(long)]
    pub check: bool,
}

/// Options of `flashmesh restore`.
#[derive(Debug, Args)]
pub(super) struct RestoreArguments {
    /// Folder, or URL of one: s3://bucket/folder, gs://bucket/folder
    #[arg(value_name = "PLACE")]
    pub from: String,
    /// This one, not the last
    #[arg(long, value_name = "N")]
    pub number: Option<u32>,
}

/// A server in place of a database.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ConnectArguments {
    /// Run statements on a server: grpc://host:port, grpc+tls://host:port, or the rack file of a
    /// rack, of which the first node that answers is taken
    #[arg(long, value_name = "URL", conflicts_with_all = ["db", "read_only"])]
    pub connect: Option<String>,
    /// User; the password is asked for, or taken from $FLASHMESH_PASSWORD. A token in
    /// $FLASHMESH_TOKEN needs neither
    #[arg(long, value_name = "NAME", requires = "connect")]
    pub user: Option<String>,
    /// Certificates (PEM) of those who sign the server's certificate [default: the system's]
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub tls_ca: Option<PathBuf>,
    /// Certificate (PEM) that the client shows
    #[arg(id = "client_cert", long = "tls-client-cert", value_name = "FILE", requires_all = ["connect", "client_key"])]
    pub client_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(id = "client_key", long = "tls-client-key", value_name = "FILE", requires_all = ["connect", "client_cert"])]
    pub client_key: Option<PathBuf>,
}

/// How results are printed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArguments {
    /// How results are printed
    #[arg(long, value_enum, default_value_t = Format::Automatic)]
    pub format: Format,
    /// Rows shown of a table, or inf [default: 40 on a terminal, else inf]
    #[arg(long, value_name = "N", value_parser = parse_rows)]
    pub maxrows: Option<usize>,
    /// Print results only: no times, no greeting, no progress
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// table; of EXPLAIN on a terminal, a tree
    Automatic,
    Table,
    /// A table in lines
    Box,
    /// A line for each value
    Line,
    /// A table of Markdown
    Markdown,
    /// A table of HTML
    Html,
    /// An INSERT statement for each row
    Insert,
    Csv,
    Tsv,
    Json,
    #[value(name = "ndjson", alias = "nd-json")]
    NdJson,
}

impl Format {
    /// Whether it is printed when all rows are there.
    pub fn needs_all_rows(self) -> bool {
        matches!(
            self,
            Self::Automatic | Self::Table | Self::Box | Self::Markdown
        )
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum KernelCommand {
    /// Make a folder with a manifest and a source to begin with
    New(KernelNewArguments),
    /// Compile kernels to packages (.fmk), which CREATE FUNCTION takes. Needs clang++ with wasm-ld, or
    /// the PyPI package ziglang
    Build(KernelBuildArguments),
    /// Compile kernels and compare them on random data with the SQL expression that
    /// their manifests call test.reference. Exit code 1 when one differs
    Test(KernelTestArguments),
    /// Compile kernels as a C simulation into a container for the device model (fpga/shell/model), which
    /// --xclbin takes. Needs g++
    Container(KernelContainerArguments),
    /// Write a Makefile and configuration that build kernels for a card with Vitis. They are generated,
    /// and were not run without Vitis
    Vitis(KernelVitisArguments),
    /// Show what packages, or kernels' folders, hold
    Inspect(KernelInspectArguments),
}

#[derive(Debug, Args)]
pub(super) struct KernelNewArguments {
    /// Its SQL name
    pub name: String,
    /// What it computes
    #[arg(long, value_enum, default_value_t = KernelKind::Filter)]
    pub kind: KernelKind,
    /// The folder to make [default: the name]
    #[arg(long = "dir", value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// The kinds of kernels, as docs/kernels.md tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KernelKind {
    /// One value a row
    Scalar,
    /// TRUE or FALSE a row
    Filter,
    /// One value a group
    Aggregate,
    /// How far each row's vector is from one vector
    Distance,
    /// Where a pattern begins in each row's text
    Search,
    /// Rows from a column's pages
    Table,
}

impl From<KernelKind> for Kind {
    fn from(kind: KernelKind) -> Self {
        match kind {
            KernelKind::Scalar => Self::Scalar,
            KernelKind::Filter => Self::Filter,
            KernelKind::Aggregate => Self::Aggregate,
            KernelKind::Distance => Self::Distance,
            KernelKind::Search => Self::Search,
            KernelKind::Table => Self::Table,
        }
    }
}

#[derive(Debug, Default, Args)]
pub(super) struct KernelBuildArguments {
    /// Folders with a kernel.toml
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// The package to write [default: NAME.fmk in the kernel's folder]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Folders of further headers, e.g. ap_int.h's; those of Vitis (XILINX_HLS) and of the PyPI
    /// package hls4ml are found
    #[arg(short = 'I', long, value_name = "DIR")]
    pub include: Vec<PathBuf>,
    /// A device's container (xclbin) to put into the package
    #[arg(long = "device", value_name = "FILE")]
    pub container: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct KernelTestArguments {
    /// Folders with a kernel.toml
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Seed of the random data, as a failure printed it
    #[arg(long)]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct KernelContainerArguments {
    /// Folders with a kernel.toml
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// The container to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Folders of further headers, e.g. ap_int.h's
    #[arg(short = 'I', long, value_name = "DIR")]
    pub include: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct KernelVitisArguments {
    /// Folders with a kernel.toml
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// The folder to write to
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct KernelInspectArguments {
    /// Packages, or folders with a kernel.toml
    #[arg(required = true, value_name = "FILE")]
    pub packages: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct LoadArguments {
    /// Table to load, made from the files' columns unless --append is given
    pub table: String,
    /// Files, folders, globs or URLs, all of one format
    #[arg(required = true)]
    pub files: Vec<String>,
    /// Add to the table; columns are matched by name
    #[arg(long, conflicts_with = "replace")]
    pub append: bool,
    /// Take the place of a table of that name
    #[arg(long)]
    pub replace: bool,
    /// Format of the files [default: by their ending]
    #[arg(long, value_name = "FORMAT", value_parser = ["parquet", "csv", "tsv", "json", "arrow", "avro"])]
    pub format: Option<String>,
    /// CSV: what separates fields [default: a comma]
    #[arg(long, value_name = "CHAR")]
    pub delimiter: Option<char>,
    /// CSV: the first line is data; columns are called column_1, column_2, …
    #[arg(long)]
    pub no_header: bool,
    /// CSV: fields that equal TEXT are NULL, as empty fields are
    #[arg(long, value_name = "TEXT")]
    pub null: Option<String>,
    /// No progress bar
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub server: ConnectArguments,
}

#[derive(Debug, Args)]
pub(super) struct ServeArguments {
    /// Address and port of Flight SQL; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50051")]
    pub listen: SocketAddr,
    /// Address and port of the page, /metrics and /healthz; "none" for no page
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50052")]
    pub http: String,
    /// Certificate (PEM): Flight SQL is served over TLS
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        help_heading = "Security"
    )]
    pub tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "Security"
    )]
    pub tls_key: Option<PathBuf>,
    /// Certificates (PEM) of those who sign clients' certificates: clients must have one
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "Security"
    )]
    pub tls_client_ca: Option<PathBuf>,
    /// Serve other machines without TLS: anybody on the way can read along
    #[arg(long, help_heading = "Security")]
    pub allow_plaintext: bool,
    /// Serve without users, whoever the database has, other machines too: whoever reaches the server may
    /// do everything
    #[arg(long, help_heading = "Security")]
    pub allow_anonymous: bool,
    /// Serve the page, which has no TLS, to other machines
    #[arg(long, help_heading = "Security")]
    pub allow_plaintext_page: bool,
    /// Users, their passwords' hashes and what is granted to them (see flashmesh user add), beside those
    /// of the database (CREATE USER); without any, everybody who can connect may do everything
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub users: Option<PathBuf>,
    /// Ask everybody for a login, and do not start as long as there are no users
    #[arg(long, conflicts_with = "allow_anonymous", help_heading = "Security")]
    pub require_login: bool,
    /// Logins and statements, a JSON object a line, are added to this file
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub audit_log: Option<PathBuf>,
    /// Secret of tokens, at least 32 bytes [default: drawn at start, so that tokens end with the
    /// process]
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub token_secret: Option<PathBuf>,
    /// How long a login is good for, e.g. 12h
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "12h", help_heading = "Security")]
    pub token_lifetime: Duration,
    /// How long the result of a query that gives the same each time can be fetched again, or none: once
    #[arg(long, value_name = "TIME", value_parser = parse_time_or_none, default_value = "30s", help_heading = "Limits")]
    pub ticket_lifetime: Duration,
    /// How long a stopping server waits for requests that run
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s", help_heading = "Limits")]
    pub drain_time: Duration,
    /// Sessions that were not used for so long end
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "30m", help_heading = "Limits")]
    pub session_idle: Duration,
    /// Connections; more close one without a login, or wait to be accepted
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        help_heading = "Limits"
    )]
    pub max_connections: usize,
    /// How long a connection may be open without a login
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "10s", help_heading = "Limits")]
    pub login_time: Duration,
    /// Sessions; more end one that was not used for a minute, or are refused
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2_000,
        help_heading = "Limits"
    )]
    pub max_sessions: usize,
    /// Queries that run at once; more wait
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Limits")]
    pub max_queries: usize,
    /// Queries of a user that run at once [default: half of --max-queries]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_user_queries: Option<usize>,
    /// Sessions of a user [default: half of --max-sessions]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_user_sessions: Option<usize>,
    /// What a user's queries may hold in memory [default: half of --memory-limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    pub max_user_memory: Option<u64>,
    /// What a user's queries may spill [default: half of --spill-limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    pub max_user_spill: Option<u64>,
    /// Size of a user's prepared statements, with the parameters bound to them
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MB", help_heading = "Limits")]
    pub max_user_prepared: u64,
    /// How long a query waits for its turn
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s", help_heading = "Limits")]
    pub queue_time: Duration,
    /// How long a query may take [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = "Limits")]
    pub query_time_limit: Option<Duration>,
    /// Size of a client's message
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64MB", help_heading = "Limits")]
    pub max_message: u64,
    /// What is logged, e.g. warn or info,flashmesh=debug
    #[arg(
        long,
        value_name = "FILTER",
        default_value = "info",
        help_heading = "Logs and traces"
    )]
    pub log: String,
    /// How it is logged
    #[arg(long, value_enum, default_value_t = LogStyle::Text, help_heading = "Logs and traces")]
    pub log_format: LogStyle,
    /// OpenTelemetry collector (OTLP over gRPC) that gets traces, e.g. http://127.0.0.1:4317
    #[arg(long, value_name = "URL", help_heading = "Logs and traces")]
    pub otlp: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogStyle {
    Text,
    Json,
}

impl From<LogStyle> for LogFormat {
    fn from(style: LogStyle) -> Self {
        match style {
            LogStyle::Text => Self::Text,
            LogStyle::Json => Self::Json,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum UserCommand {
    /// Add a user, who may read all tables; edit the file to grant more or less
    Add {
        /// Name
        name: String,
        /// The users file; made when missing
        #[arg(long, value_name = "FILE")]
        users: PathBuf,
        /// May do everything
        #[arg(long)]
        admin: bool,
    },
    /// Change a user's password. Logins with the one before end
    Passwd {
        /// Name
        name: String,
        /// The users file
        #[arg(long, value_name = "FILE")]
        users: PathBuf,
    },
    /// List users: who is an admin, and what the others may do
    List {
        /// The users file
        #[arg(long, value_name = "FILE")]
        users: PathBuf,
    },
    /// Remove a user, whose sessions and tokens end
    Remove {
        /// Name
        name: String,
        /// The users file
        #[arg(long, value_name = "FILE")]
        users: PathBuf,
    },
    /// Print a token with which a user connects without a password
    Token {
        /// Name of a user of the users file
        name: String,
        /// The server's --token-secret
        #[arg(long, value_name = "FILE")]
        token_secret: PathBuf,
        /// The server's --users: servers with another file don't take the token [default: all that
        /// have the secret do]
        #[arg(long, value_name = "FILE")]
        users: Option<PathBuf>,
        /// How long it is good for, e.g. 30d
        #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "12h")]
        expires: Duration,
    },
}

#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// TPC-H scale factor: 1 is 6 million order lines, about 1 GB as text
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = parse_scale_factor)]
    pub scale_factor: f64,
    /// Print the full EXPLAIN ANALYZE of every query
    #[arg(long)]
    pub explain: bool,
}

impl Arguments {
    /// Parses a command line; exits with a message and code 2 where it is wrong.
    pub fn of_command_line(command_line: Vec<OsString>) -> Self {
        let matches = Self::command().get_matches_from(command_line);
        let mut arguments = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        arguments.sources = in_order(
            &matches,
            std::mem::take(&mut arguments.sql),
            std::mem::take(&mut arguments.file),
        );
        if let Some(database) = arguments.database.take() {
            if let Some(why) = mistyped(&database) {
                Self::command()
                    .error(clap::error::ErrorKind::InvalidSubcommand, why)
                    .exit();
            }
            arguments.engine.db = Some(database);
        }
        if arguments.command.is_some() && !arguments.sources.is_empty() {
            Self::command()
                .error(
                    clap::error::ErrorKind::ArgumentConflict,
                    "-c and -f can't be combined with a command",
                )
                .exit();
        }
        arguments
    }
}

/// Says that a word was most likely meant as a command: no new database is made of it.
fn mistyped(database: &Path) -> Option<String> {
    let word = database
        .to_str()
        .filter(|word| !word.contains(['/', '.']))?;
    if database.exists() {
        return None;
    }
    let commands = Arguments::command();
    let names = commands.get_subcommands().map(clap::Command::get_name);
    let meant = suggest::nearest(word, names)?;
    Some(format!(
        "there is no command '{word}'; did you mean '{meant}'? A new database of that name: --db {word}"
    ))
}

/// The sources of SQL in the order in which the command line names them.
fn in_order(matches: &ArgMatches, sql: Vec<String>, files: Vec<PathBuf>) -> Vec<Source> {
    let positions = |id| matches.indices_of(id).into_iter().flatten();
    let mut sources: Vec<(usize, Source)> = positions("sql")
        .zip(sql.into_iter().map(Source::Sql))
        .chain(positions("file").zip(files.into_iter().map(Source::File)))
        .collect();
    sources.sort_by_key(|(position, _)| *position);
    sources.into_iter().map(|(_, source)| source).collect()
}

impl EngineArguments {
    fn kernels(&self) -> SandboxOptions {
        let mut options = SandboxOptions::default();
        if let Some(bytes) = self.kernel_memory {
            options.memory_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        if let Some(time) = self.kernel_time {
            options.time_per_call = time;
        }
        if let Some(bytes) = self.kernel_query_memory {
            options.memory_per_query = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        if let Some(time) = self.kernel_query_time {
            options.time_per_query = time;
        }
        options
    }

    /// The same options for another process, but for the database's folder.
    pub fn to_words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        let mut add = |flag: &str, value: Option<OsString>| {
            if let Some(value) = value {
                words.extend([flag.into(), value]);
            }
        };
        fn text(value: impl ToString) -> OsString {
            value.to_string().into()
        }
        let seconds = |time: Duration| text(format!("{}s", time.as_secs()));
        add("--memory-limit", self.memory_limit.map(text));
        add("--cache-size", self.cache_size.map(text));
        add("--external-cache-size", self.external_cache_size.map(text));
        add("--threads", self.threads.map(text));
        add("--spill-dir", self.spill_dir.clone().map(Into::into));
        add("--spill-limit", self.spill_limit.map(text));
        add("--xclbin", self.xclbin.clone().map(Into::into));
        add("--kernel-memory", self.kernel_memory.map(text));
        add("--kernel-time", self.kernel_time.map(seconds));
        add("--kernel-query-memory", self.kernel_query_memory.map(text));
        add("--kernel-query-time", self.kernel_query_time.map(seconds));
        if self.cache_local_files {
            words.push("--cache-local-files".into());
        }
        words
    }

    /// Refuses what says which database is opened, where that is decided already.
    pub fn without_database(&self) -> Result<()> {
        match (&self.db, self.read_only) {
            (None, false) => Ok(()),
            _ => Err(Error::usage(
                "--db and --read-only don't go with racks: the head of a rack has its database in \
                 its own folder, which the rack file names",
            )),
        }
    }

    /// The engine's options.
    pub fn options(&self) -> Result<EngineOptions> {
        if self.read_only && self.db.is_none() {
            return Err(Error::usage(
                "--read-only needs a database to read: name its folder with --db",
            ));
        }
        Ok(EngineOptions {
            // The name that SQLite and others have for it.
            path: self.db.clone().filter(|path| path != ":memory:"),
            card: None,
            rack: None,
            read_only: self.read_only,
            cache_bytes: self.cache_size,
            external_cache_bytes: self.external_cache_size,
            cache_local_files: self.cache_local_files,
            memory_limit_bytes: self.memory_limit,
            spill_folder: self.spill_dir.clone(),
            spill_limit_bytes: self.spill_limit,
            threads: self.threads,
            kernels: self.kernels(),
            container: self.xclbin.clone(),
            object_stores: None,
        })
    }
}

fn parse_size(text: &str) -> std::result::Result<u64, String> {
    match flashmesh_planner::config::parse_size(text) {
        Ok(0) => Err("must be more than 0".into()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err("write a number with a unit, e.g. 512MB, 4GB or 1GiB".into()),
    }
}

fn parse_size_or_none(text: &str) -> std::result::Result<u64, String> {
    match text {
        "0" => Ok(0),
        size => parse_size(size),
    }
}

/// `90s`, `15m`, `12h`, `30d`.
pub(super) fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || "write a number with a unit, e.g. 90s, 15m, 12h or 30d".to_string();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - unit.len_utf8()]
        .parse()
        .map_err(|_| wrong())?;
    match number.checked_mul(seconds) {
        None | Some(0) => Err(wrong()),
        Some(seconds) => Ok(Duration::from_secs(seconds)),
    }
}

fn parse_time_or_none(text: &str) -> std::result::Result<Duration, String> {
    match text {
        "none" => Ok(Duration::ZERO),
        time => parse_time(time),
    }
}

pub(super) fn parse_rows(text: &str) -> std::result::Result<usize, String> {
    match text {
        "inf" => Ok(usize::MAX),
        number => number
            .parse()
            .map_err(|_| "write a number, or inf for all".into()),
    }
}

fn parse_scale_factor(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (0.001..=1000.0).contains(&factor) => Ok(factor),
        _ => Err("write a number from 0.001 to 1000".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("2d"), Ok(Duration::from_secs(172_800)));
        for wrong in [
            "",
            "s",
            "5",
            "0s",
            "-1s",
            "5 s",
            "5w",
            "99999999999999999d",
            "5é",
        ] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_of_the_database_are_handed_on_as_they_were_given() {
        let given = "--memory-limit 1GB --cache-size 64MB --external-cache-size 0 --threads 3 \
                     --spill-dir /s --spill-limit 2GB --xclbin x --kernel-memory 1MB --kernel-time 2s \
                     --kernel-query-memory 3MB --kernel-query-time 4m --cache-local-files";
        let parse = |words: Vec<OsString>| {
            let words = [OsString::from("flashmesh")].into_iter().chain(words);
            let matches = Arguments::command().get_matches_from(words);
            Arguments::from_arg_matches(&matches).unwrap().engine
        };
        let first = parse(given.split_whitespace().map(Into::into).collect());
        let again = parse(first.to_words());
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
        let flags = Arguments::command();
        let flags = flags.get_arguments().filter(|flag| flag.is_global_set());
        let handed_on = first.to_words().len() - 11;
        // All but --db and --read-only.
        assert_eq!(flags.count() - 2, handed_on);
    }

    #[test]
    fn sql_and_files_keep_their_order() {
        let matches =
            Arguments::command().get_matches_from(["flashmesh", "-c", "a", "-f", "b", "-c", "c"]);
        let arguments = Arguments::from_arg_matches(&matches).unwrap();
        let order = in_order(&matches, arguments.sql, arguments.file);
        let names: Vec<_> = order
            .iter()
            .map(|source| match source {
                Source::Sql(sql) => sql.as_str(),
                Source::File(path) => path.to_str().unwrap(),
            })
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
