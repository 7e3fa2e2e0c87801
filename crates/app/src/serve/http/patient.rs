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
pub(super) struct Patient<S> {
    stream: S,
    limit: Duration,
    standing: Arc<Standing>,
    /// Runs from the first write that had to wait until all is out.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) const fn new(stream: S, limit: Duration, standing: Arc<Standing>) -> Self {
        Self { stream, limit, standing, waits: None }
    }

    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let limit = self.limit;
        self.standing.write(true);
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(limit)));
        waits.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn a_reader_that_takes_too_little_is_cut_off_in_the_end() {
        run(async {
            let (near, mut far) = duplex(4);
            let mut near = Patient::new(near, LIMIT, Arc::default());
            // It takes something all the time, and still far too little.
            tokio::spawn(async move {
                let mut byte = [0];
                while far.read_exact(&mut byte).await.is_ok() {
                    sleep(LIMIT / 4).await;
                }
            });
            let begun = std::time::Instant::now();
            let error = near.write_all(&[0; 4096]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(begun.elapsed() < LIMIT * 4, "{:?}", begun.elapsed());
        });
    }

    #[test]
    fn a_reader_that_takes_all_in_time_may_go_on() {
        run(async {
            let (near, mut far) = duplex(4);
            let mut near = Patient::new(near, LIMIT, Arc::default());
            tokio::spawn(async move {
                let mut bytes = [0; 4];
                while far.read_exact(&mut bytes).await.is_ok() {
                    sleep(LIMIT / 20).await;
                }
            });
            // Longer than the limit altogether, but each answer is taken within it.
            for _ in 0..8 {
                near.write_all(&[0; 32]).await.unwrap();
                near.flush().await.unwrap();
            }
        });
    }
}
