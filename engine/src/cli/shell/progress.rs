//! A line below the prompt that says how far a query has come.

use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use flashmesh_planner::progress::ScanProgress;
use futures::StreamExt;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget};

use super::backend::{Answer, Ask};
use crate::Result;
use crate::cli::load::style;

/// What ends sooner than this needs no progress.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often the line changes.
const TICK: Duration = Duration::from_millis(100);

/// The line, drawn on standard error where that is a terminal, by a task of its own; it goes when
/// this is dropped.
struct ProgressLine {
    bar: ProgressBar,
    ticker: tokio::task::JoinHandle<()>,
}

impl ProgressLine {
    /// Starts to wait for a statement that began at `start`; `ask` is there once it is planned.
    fn start(start: Instant, ask: Option<Ask>) -> Self {
        // Nothing is drawn where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let ticking = bar.clone();
        let ticker = tokio::spawn(async move {
            tokio::time::sleep_until((start + PATIENCE).into()).await;
            ticking.set_draw_target(ProgressDrawTarget::stderr());
            loop {
                let progress = ask.as_ref().map(|ask| ask()).unwrap_or_default();
                let elapsed = start.elapsed();
                match progress.segments {
                    0 => ticking.set_style(style("{spinner} {msg}")),
                    total => {
                        ticking.set_style(style("{wide_bar} {msg}"));
                        ticking.set_length(total);
                        ticking.set_position(progress.segments_done);
                    }
                }
                ticking.set_message(message(progress, elapsed));
                ticking.tick();
                tokio::time::sleep(TICK).await;
            }
        });
        Self { bar, ticker }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.ticker.abort();
        self.bar.finish_and_clear();
    }
}

/// What a statement that began at `start` gives, with a line that says how far it is: up to its last
/// row, or to the first where rows are printed as they come.
pub(super) async fn watched(
    start: Instant,
    starting: impl Future<Output = Result<Answer>>,
    is_streaming: bool,
) -> Result<Answer> {
    let line = ProgressLine::start(start, None);
    let answer = starting.await;
    drop(line);
    let answer = answer?;
    let line = ProgressLine::start(start, answer.progress);
    Ok(Answer {
        rows: until_printed(answer.rows, line, is_streaming),
        all_rows: answer.all_rows,
        progress: None,
    })
}

/// The same rows; `line` goes with the last of them, or with the first where rows are printed as
/// they come.
fn until_printed(
    rows: SendableRecordBatchStream,
    line: ProgressLine,
    is_streaming: bool,
) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let mut line = Some(line);
    let mut rows = Some(rows);
    let rows = futures::stream::poll_fn(move |context| {
        let Some(running) = &mut rows else {
            return Poll::Ready(None);
        };
        let batch = ready!(running.poll_next_unpin(context));
        if is_streaming || batch.is_none() {
            line.take();
        }
        if batch.is_none() {
            rows = None;
        }
        Poll::Ready(batch)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// `1.5 GiB from flash, 3 s, about 4 s left`.
fn message(progress: ScanProgress, elapsed: Duration) -> String {
    let mut parts = Vec::new();
    if progress.bytes_from_flash > 0 {
        parts.push(format!(
            "{} from flash",
            HumanBytes(progress.bytes_from_flash)
        ));
    }
    parts.push(format!("{} s", elapsed.as_secs()));
    if let Some(left) = left(progress, elapsed) {
        parts.push(format!("about {} s left", left.as_secs().max(1)));
    }
    parts.join(", ")
}

/// The time left, if the rest takes as long as what is done; `None` at the very start and when
/// the scans are done: what comes then is not known.
fn left(progress: ScanProgress, elapsed: Duration) -> Option<Duration> {
    let (done, total) = (progress.segments_done, progress.segments);
    let is_known = done < total && done * 50 >= total;
    is_known.then(|| elapsed.mul_f64((total - done) as f64 / done as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_query() {
        let progress = |bytes_from_flash, segments_done, segments| ScanProgress {
            bytes_from_flash,
            segments_done,
            segments,
        };
        for (progress, expected) in [
            (progress(0, 0, 0), "10 s"),
            (progress(3 << 30, 1, 100), "3.00 GiB from flash, 10 s"),
            (
                progress(3 << 30, 25, 100),
                "3.00 GiB from flash, 10 s, about 30 s left",
            ),
            (progress(0, 100, 100), "10 s"),
            (progress(0, 99_999, 100_000), "10 s, about 1 s left"),
        ] {
            assert_eq!(message(progress, Duration::from_secs(10)), expected);
        }
    }
}
