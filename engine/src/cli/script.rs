//! Running SQL from -c, -f or a pipe.

use std::time::Instant;

use crate::{Result, Session};
use datafusion::logical_expr::LogicalPlan;

use super::output::Output;
use super::shell::{Backend, statements};

/// Runs the statements one after the other and prints their results; the first that fails ends
/// it. The whole text is parsed first, so that a syntax error anywhere runs nothing.
pub(super) async fn run(session: &Session, sql: &str, output: &mut Output) -> Result<()> {
    for statement in session.parse(sql)? {
        let start = Instant::now();
        let plan = session.plan(statement).await?;
        // Nobody wants a plan cut short.
        let all_rows = matches!(
            plan,
            LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) | LogicalPlan::DescribeTable(_)
        );
        let frame = session.execute(plan).await?;
        let options = session.context().copied_config().options().format.clone();
        let rows = output
            .print(frame.execute_stream().await?, all_rows, &options)
            .await?;
        output.summary(rows, all_rows, start.elapsed());
    }
    Ok(())
}

/// The same on a server, which parses each statement when its turn comes.
pub(super) async fn run_on_server(
    server: &dyn Backend,
    sql: &str,
    output: &mut Output,
) -> Result<()> {
    for statement in statements(sql)? {
        let start = Instant::now();
        let answer = server.run(statement).await?;
        let options = server.format_options();
        let rows = output.print(answer.rows, answer.all_rows, &options).await?;
        output.summary(rows, answer.all_rows, start.elapsed());
    }
    Ok(())
}
