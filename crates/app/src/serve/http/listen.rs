//! Connections: accepted, and limited in number, time and size.

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

/// Maximum number of connections. A further one replaces one that waits for a request; if there is
/// none, it gets 503 and is closed.
const CONNECTIONS: usize = 256;

/// Maximum size of the request line and headers, and maximum number of headers.
const HEADER_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;

/// Time to receive a complete request, also counted from the previous response.
const REQUEST: Duration = Duration::from_secs(10);

/// Write timeout: time for the client to receive a response.
const ANSWER: Duration = Duration::from_secs(30);

/// Age beyond which a connection is closed after its next response.
const OLD: Duration = Duration::from_secs(5 * 60);

/// Age beyond which a connection is closed at once.
const OLDEST: Duration = Duration::from_secs(15 * 60);

/// Poll interval for shutdown.
const ATTENTION: Duration = Duration::from_millis(200);

/// Response to connections beyond the limit.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\n\
    connection: close\r\n\r\n";

/// Serves requests until the feed is closed.
pub(super) fn run(listener: TcpListener, tls: Option<TlsAcceptor>, guard: Door) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let outcome = runtime.block_on(accept(listener, tls, Arc::new(guard)));
    // Drops connections that are still open.
    runtime.shutdown_background();
    outcome
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    guard: Arc<Door>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let slots = Places::new(CONNECTIONS);
    while !guard.is_over() {
        let next = async {
            guard.pass().await;
            listener.accept().await
        };
        let stream = match timeout(ATTENTION, next).await {
            Err(_) => continue,
            Ok(Ok((stream, _))) => stream,
            // The client is gone, or no file descriptor is free: both pass.
            Ok(Err(_)) => {
                sleep(ATTENTION).await;
                continue;
            }
        };
        // Responses are small and written at once.
        let _ = stream.set_nodelay(true);
        match slots.take() {
            Some(slot) => {
                let id = slot.id;
                let work = connection(stream, tls.clone(), Arc::clone(&guard), slot);
                slots.note(id, tokio::spawn(work).abort_handle());
            }
            None => refuse(stream, tls.is_some(), &guard),
        }
    }
    Ok(())
}

/// Sends 503 as far as possible without blocking.
fn refuse(stream: TcpStream, encrypted: bool, guard: &Door) {
    guard.count(503);
    if !encrypted {
        let _ = stream.try_write(BUSY);
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, guard: Arc<Door>, slot: Place) {
    let work = async {
        match tls {
            None => serve(stream, guard, &slot.status).await,
            Some(tls) => {
                guard.pass().await;
                if let Ok(Ok(stream)) = timeout(REQUEST, tls.accept(stream)).await {
                    serve(stream, guard, &slot.status).await;
                }
            }
        }
    };
    // Errors of a client are not logged.
    let _ = timeout(OLDEST, work).await;
    drop(slot);
}

async fn serve<S>(stream: S, guard: Arc<Door>, status: &Arc<Standing>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let start = Instant::now();
    let service = service_fn(|request: Request<Incoming>| {
        let (guard, busy) = (Arc::clone(&guard), status.begin());
        async move {
            guard.pass().await;
            let mut response: Answer = guard.respond(&request);
            if start.elapsed() > OLD {
                response.close();
            }
            Ok::<_, Infallible>(response.finish().map(|body| Told::new(body, busy)))
        }
    });
    let stream = TokioIo::new(Patient::new(stream, ANSWER, Arc::clone(status)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .max_header_size(HEADER_BYTES)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES.max(64 << 10))
        .serve_connection(stream, service);
    let _ = connection.await;
}
