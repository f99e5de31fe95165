//! The interactive shell: that of `datafusion-cli`, with plans run by our session.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use datafusion::execution::{SessionState, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion_cli::cli_context::CliSessionContext;
use datafusion_cli::exec;
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreRegistry;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::{MaxRows, PrintOptions};
use flashmesh::{Error, Result, Session};
use object_store::ObjectStore;

use super::arguments::{Format, OutputArguments};
use super::output::TERMINAL_ROWS;

/// Object stores whose requests the shell's `\object_store_profiling` shows.
pub(super) fn object_stores() -> Arc<InstrumentedObjectStoreRegistry> {
    Arc::new(InstrumentedObjectStoreRegistry::new())
}

/// Reads and runs statements until the user leaves.
pub(super) async fn run(
    session: &Session,
    output: &OutputArguments,
    object_stores: Arc<InstrumentedObjectStoreRegistry>,
) -> Result<()> {
    if !output.quiet {
        let engine = session.engine();
        let database = if engine.is_temporary() {
            "a temporary database".to_string()
        } else {
            format!("database {}", engine.database().path().display())
        };
        println!(
            "flashmesh {}, {database}; \\? for help, \\q to leave",
            env!("CARGO_PKG_VERSION")
        );
    }
    let format = match output.format {
        Format::Automatic => PrintFormat::Automatic,
        Format::Table => PrintFormat::Table,
        Format::Csv => PrintFormat::Csv,
        Format::Tsv => PrintFormat::Tsv,
        Format::Json => PrintFormat::Json,
        Format::NdJson => PrintFormat::NdJson,
    };
    let max_rows = match (format, output.maxrows) {
        (PrintFormat::Automatic | PrintFormat::Table, rows) => {
            MaxRows::Limited(rows.unwrap_or(TERMINAL_ROWS))
        }
        _ => MaxRows::Unlimited,
    };
    let mut options = PrintOptions {
        format,
        quiet: output.quiet,
        maxrows: max_rows,
        color: true,
        instrumented_registry: object_stores,
    };
    exec::exec_from_repl(&Shell(session), &mut options)
        .await
        .map_err(|e| Error::usage(format!("the terminal failed: {e}")))
}

/// The session as `datafusion-cli` wants to see it.
struct Shell<'a>(&'a Session);

#[async_trait]
impl CliSessionContext for Shell<'_> {
    fn task_ctx(&self) -> Arc<TaskContext> {
        self.0.context().task_ctx()
    }

    fn session_state(&self) -> SessionState {
        self.0.context().state()
    }

    fn register_object_store(
        &self,
        url: &url::Url,
        object_store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore + 'static>> {
        self.0.context().register_object_store(url, object_store)
    }

    fn register_table_options_extension_from_scheme(&self, scheme: &str) {
        self.0
            .context()
            .register_table_options_extension_from_scheme(scheme);
    }

    async fn execute_logical_plan(&self, plan: LogicalPlan) -> Result<DataFrame, DataFusionError> {
        Ok(self.0.execute(plan).await?)
    }
}
