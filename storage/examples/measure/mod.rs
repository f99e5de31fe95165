//! What the examples that measure share: what the device gives, and what the processor was used
//! for.

#![allow(dead_code, reason = "each example uses a part of it")]

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The middle one of some measurements.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What all threads of this process together have taken of the processors.
pub fn processor_time() -> Duration {
    // SAFETY: an all-zero `rusage` is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is there to be written to.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// What fio says of random reads of 8 KiB.
#[derive(Debug, Clone, Copy)]
pub struct Fio {
    /// Reads a second.
    pub reads_per_second: f64,
    /// From the submission of a read to its end, mean.
    pub latency_us: f64,
    /// Share of one processor that fio itself took.
    pub processors: f64,
}

/// Lets fio read pages of the first `bytes` of a file at random, `depth` in flight, past the
/// system's cache. A card's file is longer than what was written to it, and a hole is read faster
/// than any device.
///
/// # Errors
/// When fio is not installed or fails.
pub fn fio(file: &Path, bytes: u64, depth: usize, seconds: u32) -> io::Result<Fio> {
    let output = Command::new("fio")
        .args(["--name=reads", "--readonly", "--direct=1", "--rw=randread"])
        .args(["--bs=8k", "--ioengine=io_uring", "--time_based"])
        .args(["--output-format=terse", "--terse-version=3"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--size={bytes}"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--runtime={seconds}"))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("3;"));
    let fields: Vec<&str> = line.unwrap_or_default().split(';').collect();
    let number = |field: usize| {
        let field = fields.get(field).map(|f| f.trim_end_matches('%'));
        field.and_then(|f| f.parse::<f64>().ok()).ok_or_else(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            io::Error::other(format!("fio says: {text}{errors}"))
        })
    };
    Ok(Fio {
        reads_per_second: number(7)?,
        latency_us: number(39)?,
        processors: (number(87)? + number(88)?) / 100.0,
    })
}
