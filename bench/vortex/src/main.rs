//! DataFusion on Vortex files, driven by bench/vortex_rival.py: one SQL statement a line on
//! standard input, its result as an Arrow IPC stream on standard output, each after its length.

use std::io::{BufRead, Write};
use std::sync::Arc;

use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::common::GetExt;
use datafusion::datasource::provider::DefaultTableFactory;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use vortex_datafusion::VortexFormatFactory;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let threads = std::env::args().nth(1).ok_or("usage: vortex-rival THREADS")?.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(serve(threads))
}

async fn serve(threads: usize) -> Result<(), Error> {
    let format = Arc::new(VortexFormatFactory::new());
    let mut builder = SessionStateBuilder::new()
        .with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(threads))
        .with_table_factory(format.get_ext().to_uppercase(), Arc::new(DefaultTableFactory::new()));
    builder.file_formats().get_or_insert_default().push(format);
    let context = SessionContext::new_with_state(builder.build()).enable_url_table();

    let mut output = std::io::stdout().lock();
    for statement in std::io::stdin().lock().lines() {
        let frame = context.sql(&statement?).await?;
        let schema = Arc::new(frame.schema().as_arrow().clone());
        let batches = frame.collect().await?;
        let mut stream = StreamWriter::try_new(Vec::new(), &schema)?;
        for batch in &batches {
            stream.write(batch)?;
        }
        let bytes = stream.into_inner()?;
        output.write_all(&(bytes.len() as u64).to_le_bytes())?;
        output.write_all(&bytes)?;
        output.flush()?;
    }
    Ok(())
}
