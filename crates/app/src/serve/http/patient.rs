//! A connection that is patient with slow readers, to an end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::places::Standing;

/// A stream whose other side must take what is written within a time, however little it takes at once.
pub(super) struct Patient<S, T = Sleep> {
    stream: S,
    limit: Duration,
    standing: Arc<Standing>,
    timer: fn(Duration) -> T,
    /// Runs from the first write that had to wait until all is out.
    waits: Option<Pin<Box<T>>>,
}

impl<S> Patient<S> {
    pub(super) const fn new(stream: S, limit: Duration, standing: Arc<Standing>) -> Self {
        Self { stream, limit, standing, timer: sleep, waits: None }
    }
}

impl<S, T: Future<Output = ()>> Patient<S, T> {
    fn wait<R>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<R>> {
        let (timer, limit) = (self.timer, self.limit);
        self.standing.write(true);
        let waits = self.waits.get_or_insert_with(|| Box::pin(timer(limit)));
        waits.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin, T> AsyncRead for Patient<S, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, T: Future<Output = ()>> AsyncWrite for Patient<S, T> {
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
                self.waits = None;
                self.standing.write(false);
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
        /// The time of the test, which passes when the test says so.
        static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// A timer by that time.
    struct Alarm(Duration);

    impl Future for Alarm {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            if NOW.get() >= self.0 { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    /// A connection with room for four bytes, and its far end.
    fn connection() -> (Patient<DuplexStream, Alarm>, DuplexStream) {
        let (near, far) = duplex(4);
        let timer = |limit| Alarm(NOW.get() + limit);
        let standing = Arc::default();
        (Patient { stream: near, limit: LIMIT, standing, timer, waits: None }, far)
    }

    /// Polls a write to its end; meanwhile the far end takes some bytes, and some time, again and again.
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
            let mut taken = vec![0; bytes];
            let read = pin!(far.read_exact(&mut taken)).poll(&mut context);
            assert!(read.is_ready(), "something was written");
        }
    }

    #[test]
    fn a_reader_that_takes_too_little_is_cut_off_in_the_end() {
        let (mut near, mut far) = connection();
        // It takes something all the time, and still far too little.
        let result = write(near.write_all(&[0; 4096]), &mut far, 1, LIMIT / 4);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(NOW.get(), LIMIT);
    }

    #[test]
    fn a_reader_that_takes_all_in_time_may_go_on() {
        let (mut near, mut far) = connection();
        // Longer than the limit altogether, but each answer is taken within it.
        for _ in 0..8 {
            let answer = async {
                near.write_all(&[0; 32]).await?;
                near.flush().await
            };
            write(answer, &mut far, 4, LIMIT / 20).unwrap();
        }
        assert!(NOW.get() > LIMIT * 2, "{:?}", NOW.get());
    }
}
