//! A stream with a write timeout, for slow clients.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::connections::ConnectionStatus;

/// A stream whose peer must receive everything that is written within a time limit, even if it
/// reads slowly.
pub(in crate::serve::api) struct WriteTimeoutStream<S, T = Sleep> {
    stream: S,
    limit: Duration,
    status: Arc<ConnectionStatus>,
    timer: fn(Duration) -> T,
    /// Runs from the first blocked write until everything is flushed.
    deadline: Option<Pin<Box<T>>>,
}

impl<S> WriteTimeoutStream<S> {
    pub(in crate::serve::api) const fn new(
        stream: S,
        limit: Duration,
        status: Arc<ConnectionStatus>,
    ) -> Self {
        Self { stream, limit, status, timer: sleep, deadline: None }
    }
}

impl<S, T: Future<Output = ()>> WriteTimeoutStream<S, T> {
    fn wait<R>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<R>> {
        let (timer, limit) = (self.timer, self.limit);
        self.status.write(true);
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(timer(limit)));
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin, T> AsyncRead for WriteTimeoutStream<S, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, T: Future<Output = ()>> AsyncWrite for WriteTimeoutStream<S, T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Pending => self.wait(context),
            ready => ready,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Pending => self.wait(context),
            ready => {
                self.deadline = None;
                self.status.write(false);
                ready
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Pending => self.wait(context),
            ready => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    thread_local! {
        /// Time of the test, advanced by the test.
        static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// A timer on that time.
    struct Alarm(Duration);

    impl Future for Alarm {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            if NOW.get() >= self.0 { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    /// Returns a connection with a buffer of four bytes, and its far end.
    fn connection() -> (WriteTimeoutStream<DuplexStream, Alarm>, DuplexStream) {
        let (near, far) = duplex(4);
        let timer = |limit| Alarm(NOW.get() + limit);
        let status = Arc::default();
        (WriteTimeoutStream { stream: near, limit: LIMIT, status, timer, deadline: None }, far)
    }

    /// Polls a write to its end; meanwhile the far end repeatedly reads `bytes`, each time after
    /// `wait`.
    fn write<T>(
        write: impl Future<Output = T>,
        far: &mut DuplexStream,
        bytes: usize,
        wait: Duration,
    ) -> T {
        let mut context = Context::from_waker(Waker::noop());
        let mut write = pin!(write);
        loop {
            if let Poll::Ready(result) = write.as_mut().poll(&mut context) {
                return result;
            }
            NOW.set(NOW.get() + wait);
            let mut buffer = vec![0; bytes];
            let read = pin!(far.read_exact(&mut buffer)).poll(&mut context);
            assert!(read.is_ready(), "something was written");
        }
    }

    #[test]
    fn slow_reader_times_out() {
        let (mut near, mut far) = connection();
        // It keeps reading, but far too slowly.
        let result = write(near.write_all(&[0; 4096]), &mut far, 1, LIMIT / 4);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(NOW.get(), LIMIT);
    }

    #[test]
    fn reader_within_the_limit_is_served() {
        let (mut near, mut far) = connection();
        // Longer than the limit in total, but each response is read within it.
        for _ in 0..8 {
            let response = async {
                near.write_all(&[0; 32]).await?;
                near.flush().await
            };
            write(response, &mut far, 4, LIMIT / 20).unwrap();
        }
        assert!(NOW.get() > LIMIT * 2, "{:?}", NOW.get());
    }
}
