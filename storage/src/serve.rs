//! Commands of other nodes, run over the segments that lie here.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;

use crate::accelerator::ScanMetrics;
use crate::kernel::has_kernels;
use crate::node::{Command, ResultStream, RuntimeFilters, SegmentQueue, Step, StorageNode};
use crate::peer::{CommandLife, Frames, PeerCommand};
use crate::{Result, StorageError};

/// Batches that wait to be sent, for each thread that makes them.
const BATCHES_AHEAD: usize = 2;
/// Stack of each of these threads.
const STACK_BYTES: usize = 8 << 20;

impl StorageNode {
    /// Runs a command that another node has sent, on up to `threads` threads, and gives the frames of
    /// its answer to `send`, one after the other; an error of the command is one of them. It ends
    /// early, with no further frame, when its `life` is over or `send` fails.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn serve(
        &self,
        command: &[u8],
        threads: usize,
        life: &CommandLife,
        send: &mut dyn FnMut(Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let metrics = Arc::new(ScanMetrics::default());
        let streams = match self.streams(command, threads, life, &metrics) {
            Ok(streams) => streams,
            Err(error) => return send(Frames::error(&error)),
        };
        let mut frames = Frames::default();
        thread::scope(|scope| {
            let ahead = BATCHES_AHEAD * streams.len();
            let (sender, results) = mpsc::sync_channel(ahead.max(1));
            for stream in streams {
                let sender = sender.clone();
                // As deep as those of servers: kernels may call each other.
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                let work = move || run(stream, life, &sender);
                if let Err(error) = thread.spawn_scoped(scope, work) {
                    life.end();
                    return send(Frames::error(&StorageError::io("starting a thread", error)));
                }
            }
            drop(sender);
            let mut outcome = Ok(());
            for result in &results {
                outcome = match result.and_then(|batch| frames.of(&batch)) {
                    Ok(parts) => parts.into_iter().try_for_each(&mut *send),
                    Err(StorageError::Cancelled) => Err(StorageError::Cancelled),
                    Err(error) => {
                        let told = send(Frames::error(&error));
                        told.and(Err(StorageError::Cancelled))
                    }
                };
                if outcome.is_err() {
                    // Nobody takes what the others make, and nobody else ends the kernels that they call.
                    life.end();
                    break;
                }
            }
            // The threads that still run find that nobody takes what they make.
            drop(results);
            match outcome {
                Ok(()) if life.is_over() => Ok(()),
                Ok(()) => send(Frames::end(&metrics)),
                Err(StorageError::Cancelled) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn streams(
        &self,
        command: &[u8],
        threads: usize,
        life: &CommandLife,
        metrics: &Arc<ScanMetrics>,
    ) -> Result<Vec<ResultStream>> {
        let command = PeerCommand::decode(command)?;
        let work = SegmentQueue::new(command.table.segments.clone());
        if let Some(accelerator) = command.accelerator {
            work.ask_for(accelerator);
        }
        if command.forbids_fallback {
            work.forbid_fallback();
        }
        if command.plain_text {
            work.ask_for_plain_text();
        }
        if has_kernels(&command.program) {
            let none = || {
                let why = io::Error::new(io::ErrorKind::Unsupported, "it runs no kernels");
                StorageError::io("a command with kernels", why)
            };
            let shipped = self.shipped_kernels().ok_or_else(none)?;
            // Before anything of it is compiled.
            self.authorize(&command.capability, &command.table)?;
            work.bring(shipped.take(command.kernels, &command.capability, life)?);
            let calls = shipped.calls();
            calls.begin();
            work.run_kernels_of(Arc::clone(&calls));
            life.has_calls(calls);
        }
        // They all lie here.
        work.keep_here();
        let runtime_filters = Arc::new(RuntimeFilters::default());
        runtime_filters.publish(command.runtime_filters);
        let streams = threads.min(command.table.segments.len()).max(1);
        let submit = |_| {
            self.submit(Command {
                program: Arc::clone(&command.program),
                table: Arc::clone(&command.table),
                work: Arc::clone(&work),
                runtime_filters: Arc::clone(&runtime_filters),
                batch_rows: command.batch_rows,
                metrics: Arc::clone(metrics),
                capability: Arc::clone(&command.capability),
            })
        };
        (0..streams).map(submit).collect()
    }
}

/// Gives a stream's batches to `sender` until one of the two ends.
fn run(
    mut stream: ResultStream,
    life: &CommandLife,
    sender: &mpsc::SyncSender<Result<arrow::array::RecordBatch>>,
) {
    while let Some(step) = stream.step() {
        let result = match step {
            _ if life.is_over() => Err(StorageError::Cancelled),
            Ok(Step::Batch(batch)) => Ok(batch),
            Ok(Step::SegmentDone | Step::Waiting) => continue,
            Err(error) => Err(error),
        };
        let is_last = result.is_err();
        if sender.send(result).is_err() || is_last {
            return;
        }
    }
}
