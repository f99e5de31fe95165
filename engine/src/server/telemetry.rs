//! Logs and traces of a server.

use std::io::IsTerminal;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::error::{Error, Result};

/// How logs are written, to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line, for collectors.
    Json,
}

/// Sends what is left of the traces when it is dropped.
#[derive(Debug, Default)]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(traces) = self.traces.take() {
            // A collector that is gone shall not keep the server from ending.
            let _ = traces.shutdown();
        }
    }
}

/// Starts logging by `filter` (`info`, `warn,flashmesh=debug`, …) and, where a collector is
/// named, tracing to it by OTLP over gRPC. To be called within a tokio runtime, once a process.
///
/// # Errors
/// [`Error::Usage`] for a filter or an address that can't be read, and when logging was started
/// before.
pub fn start(filter: &str, format: LogFormat, otlp: Option<&str>) -> Result<Telemetry> {
    let targets: Targets = filter.parse().map_err(|e| {
        Error::usage(format!(
            "'{filter}' is no log filter ({e}); write e.g. info or warn,flashmesh=debug"
        ))
    })?;
    // The one tells every message that does not arrive, of which nodes say what matters; the other
    // expressions of statements, which may be passwords.
    let targets = ["openraft", "sqlparser"]
        .into_iter()
        .fold(targets, |targets, name| match filter.contains(name) {
            true => targets,
            false => targets.with_target(name, LevelFilter::OFF),
        });
    let logs = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let logs: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => logs.with_filter(targets).boxed(),
        LogFormat::Json => logs.json().with_filter(targets).boxed(),
    };
    let traces = otlp.map(exporter).transpose()?;
    let spans = traces.as_ref().map(|provider| {
        let ours = Targets::new().with_target("flashmesh", tracing::Level::INFO);
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("flashmesh"))
            .with_filter(ours)
    });
    tracing_subscriber::registry()
        .with(logs)
        .with(spans)
        .try_init()
        .map_err(|e| Error::usage(format!("logging: {e}")))?;
    Ok(Telemetry { traces })
}

fn exporter(endpoint: &str) -> Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|e| Error::usage(format!("the traces' collector {endpoint}: {e}")))?;
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("flashmesh").build())
        .build())
}
