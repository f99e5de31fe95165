//! A database behind a server, by Flight SQL.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cli::signals;
use crate::{Engine, EngineOptions, Error, FileOptions, Result};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Schema, UInt64Type};
use arrow_flight::error::FlightError;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{
    CommandStatementIngest, TableDefinitionOptions, TableExistsOption, TableNotExistOption,
};
use arrow_flight::{Action, CancelFlightInfoRequest, FlightInfo};
use datafusion::common::TableReference;
use datafusion::config::FormatOptions;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use flashmesh_macros::async_impl;
use flashmesh_planner::progress::ScanProgress;
use flashmesh_planner::relations::table_functions;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use prost::Message;
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use url::Url;

use super::backend::{Answer, Ask, Backend, Statement};
use super::catalog::{Catalog, Column, Index, Table};
use super::lex::{Item, items};
use crate::resources::printed;

/// How long a server may take to answer the first time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Results may have long rows; the server cuts them into messages of about 2 MiB.
const MESSAGE_BYTES: usize = 256 << 20;

/// Between two questions how far a statement is.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// A connection to a server.
pub(in crate::cli) struct Remote {
    client: FlightSqlServiceClient<Channel>,
    address: String,
    /// The statement that runs.
    running: Mutex<Option<FlightInfo>>,
}

/// By which certificates client and server know each other.
#[derive(Debug, Default)]
pub(in crate::cli) struct Tls {
    /// Those that sign the server's, where the system does not know them.
    pub ca: Option<PathBuf>,
    /// The client's, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Who connects.
pub(in crate::cli) enum Login {
    /// To a server without users.
    Nobody,
    /// With a token.
    Token(String),
    /// With name and password.
    Password(String, String),
}

impl Remote {
    /// Connects to `grpc://host:port` or `grpc+tls://host:port`.
    ///
    /// # Errors
    /// [`Error::Usage`] for an address that is none, for a server that does not answer, and for a
    /// login that it does not take.
    pub async fn connect(address: &str, login: Login, tls: &Tls) -> Result<Self> {
        let client = Self::reach(address, tls).await?;
        Self::log_in(client, address, login).await
    }

    /// Connects to the first of the addresses, of nodes of one rack, that answers.
    ///
    /// # Errors
    /// As [`Remote::connect`]; where none answers, what each of them said.
    pub async fn connect_any(addresses: &[String], login: Login, tls: &Tls) -> Result<Self> {
        let mut tried = Vec::new();
        for address in addresses {
            let mut client = match Self::reach(address, tls).await {
                Ok(client) => client,
                Err(error) => {
                    tried.push(error.to_string());
                    continue;
                }
            };
            // A node that does not reach the head takes the connection and ends it. Any answer of
            // the head will do, also that it wants a login.
            match client.get_sql_info(Vec::new()).await {
                Err(error) if is_none(&error) => {
                    let why = text(error);
                    tried.push(format!("the server at {address} does not answer: {why}"));
                }
                _ => return Self::log_in(client, address, login).await,
            }
        }
        Err(Error::usage(format!(
            "no node of the rack answers:\n  {}",
            tried.join("\n  ")
        )))
    }

    /// Connects, without a login.
    async fn reach(address: &str, tls: &Tls) -> Result<FlightSqlServiceClient<Channel>> {
        let url = parse(address)?;
        let tls = match url.scheme() {
            "grpc" | "grpc+tcp" => None,
            _ => Some(tls.config()?),
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let host = url.host_str().unwrap_or("127.0.0.1");
        let port = url.port().unwrap_or(50051);
        let unreachable = |e: &dyn std::error::Error| {
            // The cause says more than "transport error".
            let cause = std::iter::successors(Some(e), |e| e.source()).last();
            let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
            let hint = match cause.contains("CaUsedAsEndEntity") {
                true => {
                    ": its certificate is one of an authority, which is no server's; openssl req -x509 makes one \
                     with -addext basicConstraints=critical,CA:FALSE"
                }
                false => "",
            };
            Error::usage(format!(
                "the server at {address} does not answer{cause}{hint}"
            ))
        };
        let mut endpoint = Endpoint::new(format!("{scheme}://{host}:{port}"))
            .map_err(|e| unreachable(&e))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true);
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls).map_err(|e| unreachable(&e))?;
        }
        let channel = endpoint.connect().await.map_err(|e| unreachable(&e))?;
        let inner = arrow_flight::flight_service_client::FlightServiceClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES);
        Ok(FlightSqlServiceClient::new_from_inner(inner))
    }

    async fn log_in(
        mut client: FlightSqlServiceClient<Channel>,
        address: &str,
        login: Login,
    ) -> Result<Self> {
        match login {
            Login::Nobody => {}
            Login::Token(token) => client.set_token(token),
            Login::Password(user, password) => {
                let answer = client.handshake(&user, &password).await;
                answer.map_err(|e| {
                    // The client has made a text of the server's answer.
                    let all = text(e);
                    let said = all.split_once("message: \"");
                    let said = said.and_then(|(_, said)| said.split("\", source: ").next());
                    let said = said.map(|said| said.trim_end_matches('"'));
                    Error::usage(format!("logging in as '{user}': {}", said.unwrap_or(&all)))
                })?;
            }
        }
        Ok(Self {
            client,
            address: address.to_string(),
            running: Mutex::new(None),
        })
    }

    /// Sends rows into a table, as one change, which `definition` says how to begin; the number of rows.
    ///
    /// # Errors
    /// What the server says, and those of the rows.
    pub async fn ingest(
        &self,
        table: &str,
        rows: SendableRecordBatchStream,
        definition: TableDefinitionOptions,
    ) -> Result<u64> {
        let name = TableReference::parse_str(table);
        let command = CommandStatementIngest {
            table_definition_options: Some(definition),
            table: name.table().to_string(),
            schema: name.schema().map(str::to_string),
            catalog: None,
            temporary: false,
            transaction_id: None,
            options: Default::default(),
        };
        let rows = rows.map_err(|e| FlightError::ExternalError(Box::new(Error::from(e))));
        let stored = self.client.clone().execute_ingest(command, rows).await;
        Ok(stored.map_err(failed)? as u64)
    }

    /// Starts a statement; also gives what a cancel of it names.
    async fn start(&self, sql: &str) -> Result<(Answer, FlightInfo)> {
        let mut client = self.client.clone();
        let info = client.execute(sql.to_string(), None).await;
        let info = info.map_err(failed)?;
        let schema = match info.schema.is_empty() {
            true => Schema::empty(),
            false => info.clone().try_decode_schema()?,
        };
        let tickets = info.endpoint.iter().filter_map(|e| e.ticket.clone());
        let tickets: Vec<_> = tickets.collect();
        let rows = stream::iter(tickets)
            .then(move |ticket| {
                let mut client = client.clone();
                async move { client.do_get(ticket).await.map_err(failed) }
            })
            .map_ok(|batches| batches.map_err(failed))
            .try_flatten()
            .map_err(DataFusionError::from);
        let is_plan = schema.fields().len() == 2 && schema.field(0).name() == "plan_type";
        let answer = Answer {
            rows: Box::pin(RecordBatchStreamAdapter::new(Arc::new(schema), rows)),
            all_rows: is_plan,
            progress: query_id(&info).map(|id| self.progress_of(id)),
        };
        Ok((answer, info))
    }

    /// Asks the server how far a statement is. An answer is what the server said last.
    fn progress_of(&self, id: u64) -> Ask {
        let question = format!(
            "SELECT bytes_from_flash, segments_done, segments FROM system.queries \
             WHERE state = 'running' AND id = {id}"
        );
        let (client, told) = (self.client.clone(), Arc::new(Mutex::new(Told::default())));
        Arc::new(move || {
            let mut now = told.lock();
            if !now.is_asking && now.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY) {
                (now.is_asking, now.asked) = (true, Some(Instant::now()));
                let (client, question) = (client.clone(), question.clone());
                let told = Arc::clone(&told);
                tokio::spawn(async move {
                    let answer = ask(client, question).await;
                    let mut told = told.lock();
                    told.is_asking = false;
                    // Whatever is wrong with the server, the statement itself will say.
                    if let Ok(Some(progress)) = answer {
                        told.progress = progress;
                    }
                });
            }
            now.progress
        })
    }

    /// The text columns of a query's result.
    async fn texts<const N: usize>(&self, sql: &str) -> Result<Vec<[String; N]>> {
        let (answer, _) = self.start(sql).await?;
        let batches: Vec<RecordBatch> = answer.rows.try_collect().await?;
        let mut rows = Vec::new();
        for batch in batches {
            for row in 0..batch.num_rows() {
                rows.push(std::array::from_fn(|column| {
                    let column = batch.columns().get(column);
                    let column = column.and_then(|column| column.as_string_opt::<i32>());
                    let value = column.filter(|column| column.is_valid(row));
                    value.map_or(String::new(), |column| column.value(row).to_string())
                }));
            }
        }
        Ok(rows)
    }
}

/// The number that a statement has among the server's queries.
fn query_id(info: &FlightInfo) -> Option<u64> {
    std::str::from_utf8(&info.app_metadata).ok()?.parse().ok()
}

/// What a server has told of a statement's progress.
#[derive(Default)]
struct Told {
    progress: ScanProgress,
    is_asking: bool,
    asked: Option<Instant>,
}

async fn ask(
    mut client: FlightSqlServiceClient<Channel>,
    question: String,
) -> Result<Option<ScanProgress>, FlightError> {
    let info = client.execute(question, None).await?;
    let ticket = info.endpoint.into_iter().find_map(|e| e.ticket);
    let ticket = ticket.ok_or_else(|| FlightError::protocol("no endpoint"))?;
    let batches: Vec<RecordBatch> = client.do_get(ticket).await?.try_collect().await?;
    let row = batches.iter().find(|batch| batch.num_rows() == 1);
    Ok(row.and_then(|row| {
        let number = |name| {
            let column = row.column_by_name(name)?;
            Some(column.as_primitive_opt::<UInt64Type>()?.value(0))
        };
        Some(ScanProgress {
            bytes_from_flash: number("bytes_from_flash")?,
            segments_done: number("segments_done")?,
            segments: number("segments")?,
        })
    }))
}

fn parse(address: &str) -> Result<Url> {
    let wrong = || {
        Error::usage(format!(
            "'{address}' is no server's address: write grpc://host:port, or grpc+tls://host:port for one with TLS"
        ))
    };
    let url = Url::parse(address).map_err(|_| wrong())?;
    let known = ["grpc", "grpc+tcp", "grpc+tls"].contains(&url.scheme());
    // A password in an address would be in the list of processes and in the shell's history.
    if !known || url.host_str().is_none() || url.password().is_some() {
        return Err(wrong());
    }
    Ok(url)
}

impl Tls {
    fn config(&self) -> Result<ClientTlsConfig> {
        // Dependencies bring two providers of cryptography, between which rustls does not choose. An
        // error says that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = |path: &Path| {
            let pem = std::fs::read(path);
            pem.map_err(|e| Error::io(format!("reading {}", path.display()), e))
        };
        let mut config = ClientTlsConfig::new();
        config = match &self.ca {
            Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
            None => config.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(config)
    }
}

/// What the server said, without what wraps it.
fn text(error: FlightError) -> String {
    match error {
        FlightError::Tonic(status) => status.message().to_string(),
        FlightError::Arrow(error) => error.to_string(),
        other => other.to_string(),
    }
}

fn failed(error: FlightError) -> Error {
    Error::usage(text(error))
}

/// Whether that is no answer of a server, but of a connection that ended.
fn is_none(error: &FlightError) -> bool {
    let FlightError::Tonic(status) = error else {
        return false;
    };
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled
    )
}

#[async_impl]
impl Backend for Remote {
    fn description(&self) -> String {
        format!("the server at {}", self.address)
    }

    fn parse<'a>(&self, sql: &'a str) -> Result<Vec<(Statement, &'a str)>> {
        // The server does, when a statement's turn comes.
        let (statements, unfinished) = items(sql);
        let last = Some(unfinished).filter(|sql| !sql.is_empty());
        let statements = statements.into_iter().chain(last.map(Item::Statement));
        let text = |(Item::Statement(sql) | Item::Command(sql))| (sql.into(), sql);
        Ok(statements.map(text).collect())
    }

    async fn run(&self, statement: Statement) -> Result<Answer> {
        let sql = match statement {
            Statement::Text(sql) => sql,
            Statement::Parsed(statement) => statement.to_string(),
        };
        let (answer, info) = self.start(&sql).await?;
        *self.running.lock() = Some(info);
        Ok(answer)
    }

    async fn cancel(&self) {
        let Some(info) = self.running.lock().take() else {
            return;
        };
        let request = CancelFlightInfoRequest { info: Some(info) };
        let action = Action::new("CancelFlightInfo", request.encode_to_vec());
        // A server that is gone has nothing left to cancel.
        let _ = self
            .client
            .clone()
            .do_action(tonic::Request::new(action))
            .await;
    }

    async fn catalog(&self) -> Result<Catalog> {
        let mut catalog = Catalog {
            table_functions: table_functions()
                .map(|(name, _)| name.to_string())
                .collect(),
            ..Catalog::default()
        };
        let settings = self
            .texts::<2>("SELECT name, value FROM information_schema.df_settings")
            .await?;
        for [name, value] in settings {
            if name == "datafusion.catalog.default_schema" {
                catalog.default_schema = value;
            }
            catalog.settings.push(name);
        }
        let routines = "SELECT DISTINCT routine_name FROM information_schema.routines ORDER BY 1";
        let routines = self.texts::<1>(routines).await?;
        catalog.functions = routines.into_iter().map(|[name]| name).collect();
        let schemas = "SELECT schema_name FROM information_schema.schemata ORDER BY 1";
        let schemas = self.texts::<1>(schemas).await?;
        catalog.schemas = schemas.into_iter().map(|[name]| name).collect();
        let tables = "SELECT table_schema, table_name, table_type FROM information_schema.tables \
                      WHERE table_schema <> 'information_schema' ORDER BY 1, 2";
        for [schema, name, kind] in self.texts::<3>(tables).await? {
            catalog.tables.push(Table {
                schema,
                name,
                kind: match kind.as_str() {
                    "VIEW" => "view",
                    "LOCAL TEMPORARY" => "temporary table",
                    _ => "table",
                },
                ..Table::default()
            });
        }
        let columns = "SELECT table_schema, table_name, column_name, data_type, is_nullable \
                       FROM information_schema.columns ORDER BY 1, 2, ordinal_position";
        for [schema, table, name, data_type, nullable] in self.texts::<5>(columns).await? {
            let of = catalog
                .tables
                .iter_mut()
                .find(|t| t.schema == schema && t.name == table);
            if let Some(table) = of {
                table.columns.push(Column {
                    name,
                    data_type,
                    nullable: nullable == "YES",
                });
            }
        }
        // A server of before knows no constraints.
        let checks = "SELECT \"schema\", \"table\", name, condition FROM system.checks";
        for [schema, table, name, condition] in self.texts::<4>(checks).await.unwrap_or_default() {
            let mut tables = catalog.tables.iter_mut();
            if let Some(of) = tables.find(|t| t.schema == schema && t.name == table) {
                of.checks.push((name, condition));
            }
        }
        let indexes = "SELECT \"schema\", \"table\", name, kind, array_to_string(columns, chr(31)), \"constraint\" \
                       FROM system.indexes ORDER BY 1, 2, 3";
        for [schema, table, name, kind, columns, constraint] in self.texts::<6>(indexes).await? {
            catalog.indexes.push(Index {
                schema,
                table,
                name,
                kind,
                columns: columns.split('\u{1f}').map(str::to_string).collect(),
                constraint: match constraint.as_str() {
                    "primary key" => "primary key",
                    "unique" => "unique",
                    _ => "",
                },
            });
        }
        Ok(catalog)
    }

    /// The file is read here and its rows are sent.
    async fn import(&self, file: &str, table: &str, _quiet: bool) -> Result<u64> {
        let reader = Engine::open(EngineOptions::default())?;
        signals::remove_at_end(reader.temporary_folders());
        let reader = reader.session()?;
        let options = FileOptions {
            newlines_in_values: true,
            ..FileOptions::default()
        };
        let frame = reader.read_files(&[file.to_string()], &options).await?;
        let definition = TableDefinitionOptions {
            if_not_exist: TableNotExistOption::Create as i32,
            if_exists: TableExistsOption::Append as i32,
        };
        let rows = frame.execute_stream().await?;
        self.ingest(table, rows, definition).await
    }

    fn format_options(&self) -> FormatOptions {
        printed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for address in [
            "grpc://localhost:50051",
            "grpc+tls://db.example",
            "grpc://[::1]:1",
        ] {
            assert!(parse(address).is_ok(), "{address}");
        }
        for address in [
            "localhost:50051",
            "http://localhost",
            "grpc://",
            "grpc://u:p@host:1",
        ] {
            assert!(parse(address).is_err(), "{address}");
        }
    }
}
