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

use super::guard::RequestGuard;
use super::limits::connections::{ConnectionSlot, ConnectionSlots, ConnectionStatus};
use super::limits::write_timeout::WriteTimeoutStream;
use super::response::{ApiResponse, TrackedBody};

/// Maximum number of connections. A further one replaces one that waits for a request; if there is
/// none, it gets 503 and is closed.
const MAX_CONNECTIONS: usize = 256;

/// Maximum size of the request line and headers, and maximum number of headers.
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 64;

/// Time to receive a complete request, also counted from the previous response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Write timeout: time for the client to receive a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Age beyond which a connection is closed after its next response.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(5 * 60);

/// Age beyond which a connection is closed at once.
const HARD_MAX_CONNECTION_AGE: Duration = Duration::from_secs(15 * 60);

/// Poll interval for shutdown.
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Response to connections beyond the limit.
const BUSY_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\n\
    connection: close\r\n\r\n";

/// Serves requests until the feed is closed.
pub(super) fn run(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    guard: RequestGuard,
) -> io::Result<()> {
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
    guard: Arc<RequestGuard>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let slots = ConnectionSlots::new(MAX_CONNECTIONS);
    while !guard.is_closed() {
        let next = async {
            guard.wait_for_cpu().await;
            listener.accept().await
        };
        let stream = match timeout(SHUTDOWN_POLL_INTERVAL, next).await {
            Err(_) => continue,
            Ok(Ok((stream, _))) => stream,
            // The client is gone, or no file descriptor is free: both pass.
            Ok(Err(_)) => {
                sleep(SHUTDOWN_POLL_INTERVAL).await;
                continue;
            }
        };
        // Responses are small and written at once.
        let _ = stream.set_nodelay(true);
        match slots.acquire() {
            Some(slot) => {
                let id = slot.id;
                let work = connection(stream, tls.clone(), Arc::clone(&guard), slot);
                slots.set_task(id, tokio::spawn(work).abort_handle());
            }
            None => refuse(stream, tls.is_some(), &guard),
        }
    }
    Ok(())
}

/// Sends 503 as far as possible without blocking.
fn refuse(stream: TcpStream, encrypted: bool, guard: &RequestGuard) {
    guard.count(503);
    if !encrypted {
        let _ = stream.try_write(BUSY_RESPONSE);
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    guard: Arc<RequestGuard>,
    slot: ConnectionSlot,
) {
    let work = async {
        match tls {
            None => serve(stream, guard, &slot.status).await,
            Some(tls) => {
                guard.wait_for_cpu().await;
                if let Ok(Ok(stream)) = timeout(REQUEST_TIMEOUT, tls.accept(stream)).await {
                    serve(stream, guard, &slot.status).await;
                }
            }
        }
    };
    // Errors of a client are not logged.
    let _ = timeout(HARD_MAX_CONNECTION_AGE, work).await;
    drop(slot);
}

async fn serve<S>(stream: S, guard: Arc<RequestGuard>, status: &Arc<ConnectionStatus>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let start = Instant::now();
    let service = service_fn(|request: Request<Incoming>| {
        let (guard, busy) = (Arc::clone(&guard), status.begin());
        async move {
            guard.wait_for_cpu().await;
            let mut response: ApiResponse = guard.respond(&request);
            if start.elapsed() > MAX_CONNECTION_AGE {
                response.close();
            }
            Ok::<_, Infallible>(response.finish().map(|body| TrackedBody::new(body, busy)))
        }
    });
    let stream = TokioIo::new(WriteTimeoutStream::new(stream, WRITE_TIMEOUT, Arc::clone(status)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_header_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES.max(64 << 10))
        .serve_connection(stream, service);
    let _ = connection.await;
}
