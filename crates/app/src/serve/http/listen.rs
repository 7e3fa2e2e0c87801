//! Connections: taken in, bounded in number, time and size, and let go.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::answer::{Answer, Told};
use super::door::Door;
use super::patient::Patient;
use super::places::{Place, Places, Standing};

/// Connections at one time. One more gets the place of one that waits for a request; where none does, it
/// is told to come again, and closed.
const CONNECTIONS: usize = 256;

/// The request's first line and its headers, all together; and how many headers there may be.
const HEADER_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;

/// A whole request must be there in this time, counted from the answer before it, too.
const REQUEST: Duration = Duration::from_secs(10);

/// What is written must be taken in this time.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection that is older than this is closed with its next answer,
const OLD: Duration = Duration::from_secs(5 * 60);

/// and one that is older than this at once.
const OLDEST: Duration = Duration::from_secs(15 * 60);

/// How soon the end of the agent is noticed.
const ATTENTION: Duration = Duration::from_millis(200);

/// What is told to those beyond the limit.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\n\
    connection: close\r\n\r\n";

/// Answers until nothing is published any more.
pub(super) fn run(listener: TcpListener, tls: Option<TlsAcceptor>, door: Door) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let outcome = runtime.block_on(accept(listener, tls, Arc::new(door)));
    // Connections that are still open are dropped.
    runtime.shutdown_background();
    outcome
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    door: Arc<Door>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Places::new(CONNECTIONS);
    while !door.is_over() {
        let next = async {
            door.pass().await;
            listener.accept().await
        };
        let stream = match timeout(ATTENTION, next).await {
            Err(_) => continue,
            Ok(Ok((stream, _))) => stream,
            // A client that was gone already, or no file descriptor left: neither is for ever.
            Ok(Err(_)) => {
                sleep(ATTENTION).await;
                continue;
            }
        };
        // Answers are small, and each is written at once.
        let _ = stream.set_nodelay(true);
        match places.take() {
            Some(place) => {
                let number = place.number;
                let work = connection(stream, tls.clone(), Arc::clone(&door), place);
                places.note(number, tokio::spawn(work).abort_handle());
            }
            None => refuse(stream, tls.is_some(), &door),
        }
    }
    Ok(())
}

/// A word to whoever finds no room, as far as it can be had without waiting.
fn refuse(stream: TcpStream, encrypted: bool, door: &Door) {
    door.count(503);
    if !encrypted {
        let _ = stream.try_write(BUSY);
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, door: Arc<Door>, place: Place) {
    let work = async {
        match tls {
            None => serve(stream, door, &place.standing).await,
            Some(tls) => {
                door.pass().await;
                if let Ok(Ok(stream)) = timeout(REQUEST, tls.accept(stream)).await {
                    serve(stream, door, &place.standing).await;
                }
            }
        }
    };
    // What a client does wrong is its own affair: there is nobody to tell.
    let _ = timeout(OLDEST, work).await;
    drop(place);
}

async fn serve<S>(stream: S, door: Arc<Door>, standing: &Arc<Standing>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let begun = Instant::now();
    let service = service_fn(|request: Request<Incoming>| {
        let (door, busy) = (Arc::clone(&door), standing.begin());
        async move {
            door.pass().await;
            let mut answer: Answer = door.answer(&request);
            if begun.elapsed() > OLD {
                answer.close();
            }
            Ok::<_, Infallible>(answer.finish().map(|content| Told::new(content, busy)))
        }
    });
    let stream = TokioIo::new(Patient::new(stream, ANSWER, Arc::clone(standing)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .max_header_size(HEADER_BYTES)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES.max(64 << 10))
        .serve_connection(stream, service);
    let _ = connection.await;
}
