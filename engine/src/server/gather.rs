//! Writes of large results in few calls to the system. HTTP/2 writes and flushes frame by frame,
//! of 16 KiB each; here they are gathered until there is no further frame.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is gathered before it is written.
const GATHERED_BYTES: usize = 128 << 10;
/// A write of so much is a frame of a result, or TLS's record of one: others are likely to
/// follow. Small answers are written at once.
const FRAME_BYTES: usize = 1 << 10;

/// A connection that gathers large writes.
///
/// A flush that follows one is put off: HTTP/2 flushes after each frame, and once more when it
/// has no other. Whoever waits for the peer reads, so that a read ends the wait, too, and nothing
/// stays behind.
#[derive(Debug)]
pub(super) struct GatherWrites<S> {
    inner: S,
    bytes: Vec<u8>,
    /// How many of `bytes` the system has.
    written: usize,
    /// The last write was large, and there was no flush since.
    more_expected: bool,
    gathers: bool,
}

impl<S> GatherWrites<S> {
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            bytes: Vec::new(),
            written: 0,
            more_expected: false,
            gathers: true,
        }
    }

    /// A connection of HTTP/1, which flushes once behind an answer: nothing is gathered.
    pub fn plain(inner: S) -> Self {
        Self {
            gathers: false,
            ..Self::new(inner)
        }
    }
}

impl<S: AsyncWrite + Unpin> GatherWrites<S> {
    /// Writes what was gathered.
    fn drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.more_expected = false;
        while self.written < self.bytes.len() {
            let rest = &self.bytes[self.written..];
            let written = ready!(Pin::new(&mut self.inner).poll_write(context, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        self.bytes.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GatherWrites<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length = parts.iter().map(|part| part.len()).sum();
        if this.bytes.len() + length > GATHERED_BYTES {
            ready!(this.drain(context))?;
        }
        let is_frame = this.gathers && (FRAME_BYTES..=GATHERED_BYTES).contains(&length);
        if this.bytes.is_empty() && !is_frame {
            return Pin::new(&mut this.inner).poll_write_vectored(context, parts);
        }
        this.bytes.reserve_exact(GATHERED_BYTES - this.bytes.len());
        for part in parts {
            this.bytes.extend_from_slice(part);
        }
        this.more_expected = is_frame;
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.more_expected {
            this.more_expected = false;
            return Poll::Ready(Ok(()));
        }
        ready!(this.drain(context))?;
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.drain(context))?;
        Pin::new(&mut this.inner).poll_shutdown(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for GatherWrites<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // What can't be written yet is as soon as the peer takes it: the task is woken then.
        if let Poll::Ready(Err(error)) = this.drain(context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut this.inner).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn pair(buffer: usize) -> (GatherWrites<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(buffer);
        (GatherWrites::new(near), far)
    }

    /// What the peer can read at once.
    fn arrived(far: &mut DuplexStream) -> usize {
        let mut bytes = vec![0; 1 << 20];
        let mut buffer = ReadBuf::new(&mut bytes);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = Pin::new(far).poll_read(&mut context, &mut buffer);
        buffer.filled().len()
    }

    #[tokio::test]
    async fn small_answers_leave_at_once() {
        let (mut near, mut far) = pair(1 << 20);
        near.write_all(&[1; 100]).await.unwrap();
        assert_eq!(arrived(&mut far), 100);
        near.write_all(&[2; 2000]).await.unwrap();
        near.write_all(&[3; 20]).await.unwrap();
        near.flush().await.unwrap();
        assert_eq!(arrived(&mut far), 2020);
    }

    #[tokio::test]
    async fn frames_leave_when_none_follows() {
        let (mut near, mut far) = pair(1 << 20);
        for _ in 0..3 {
            near.write_all(&[1; 16_384]).await.unwrap();
            near.flush().await.unwrap();
            assert_eq!(arrived(&mut far), 0);
        }
        near.flush().await.unwrap();
        assert_eq!(arrived(&mut far), 3 * 16_384);
    }

    #[tokio::test]
    async fn who_waits_for_an_answer_has_sent_all() {
        let (mut near, mut far) = pair(1 << 20);
        near.write_all(&[1; 5000]).await.unwrap();
        near.flush().await.unwrap();
        far.write_all(&[2]).await.unwrap();
        assert_eq!(near.read_u8().await.unwrap(), 2);
        assert_eq!(arrived(&mut far), 5000);
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_however_slowly_they_are_taken() {
        let (mut near, mut far) = pair(1000);
        let sent: Vec<u8> = (0..3_000_000).map(|i: u32| (i % 251) as u8).collect();
        let writes = [16_384, 70_000, 3, 1024, 400_000, 999];
        let expected = sent.clone();
        let reader = tokio::spawn(async move {
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
            assert!(read == expected);
        });
        let mut rest = sent.as_slice();
        for size in writes.iter().cycle() {
            let (now, later) = rest.split_at((*size).min(rest.len()));
            near.write_all(now).await.unwrap();
            near.flush().await.unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        near.shutdown().await.unwrap();
        drop(near);
        reader.await.unwrap();
    }
}
