//! Links within a process that are cut after some bytes, in the middle of a frame as a rule.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

use crate::mesh::transport::{Connection, Wire};

/// One end of a link. Both ends share how many bytes are left until it is cut.
struct Cuttable {
    inner: DuplexStream,
    left: Arc<AtomicI64>,
}

impl Cuttable {
    fn left(&self) -> io::Result<usize> {
        match self.left.load(Ordering::Relaxed) {
            left @ 1.. => Ok(left as usize),
            _ => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

impl AsyncRead for Cuttable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.left()?;
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for Cuttable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let most = self.left()?.min(bytes.len());
        let written = Pin::new(&mut self.inner).poll_write(context, &bytes[..most]);
        if let Poll::Ready(Ok(written)) = written {
            self.left.fetch_sub(written as i64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// Links of `bytes` in memory, each of which is cut after a random number of bytes up to `most`;
/// and how many were made.
pub(super) fn cut_often(seed: u64, bytes: usize, most: i64) -> (Wire, Arc<AtomicU64>) {
    let chance = Mutex::new(StdRng::seed_from_u64(seed));
    let made = Arc::new(AtomicU64::new(0));
    let count = made.clone();
    let wire = move || {
        count.fetch_add(1, Ordering::Relaxed);
        // Enough for greetings, and for a frame now and then.
        let left = Arc::new(AtomicI64::new(chance.lock().random_range(200..most)));
        let (here, there) = tokio::io::duplex(bytes);
        [here, there].map(|inner| {
            let left = left.clone();
            Connection::split(Cuttable { inner, left })
        })
    };
    (Arc::new(wire), made)
}
