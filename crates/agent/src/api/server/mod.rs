//! Connections: accepted, and limited in number, time and size.

pub(super) mod connections;
pub(super) mod cpu_share;
pub(super) mod layers;

use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tower::Service;

use super::{Api, routes};
use connections::{Activity, Connections};

/// Maximum number of connections. A further one replaces one that waits for a request; if there is
/// none, it gets 503 and is closed.
const MAX_CONNECTIONS: usize = 256;

/// Maximum size of the request line and headers, and maximum number of headers.
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 64;

/// Time to receive a complete request, also counted from the previous response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time in which a client must receive something of a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Age beyond which a connection is closed after its response, and then at once.
const MAX_CONNECTION_AGE: Duration = Duration::from_mins(5);
const CLOSE_TIMEOUT: Duration = Duration::from_mins(10);

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
    api: &Arc<Api>,
) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let outcome = runtime.block_on(accept(listener, tls, api));
    // Drops connections that are still open.
    runtime.shutdown_background();
    outcome
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, api: &Arc<Api>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let router = routes::router(api);
    let mut connections = Connections::new(MAX_CONNECTIONS);
    tokio::spawn(record(Arc::clone(api)));
    while !api.shared.feed.is_closed() {
        let next = async {
            api.wait_for_cpu().await;
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
        if connections.make_room() {
            let activity = Activity::new();
            let (api, router) = (Arc::clone(api), router.clone());
            let work = connection(stream, tls.clone(), api, router, Arc::clone(&activity));
            connections.add(activity, tokio::spawn(work).abort_handle());
        } else {
            api.shared.requests.count(503);
            // As far as possible without blocking.
            if tls.is_none() {
                let _ = stream.try_write(BUSY_RESPONSE);
            }
        }
    }
    Ok(())
}

/// Records the history of the live page. Not limited to a share of CPU time: it costs less than a
/// millisecond per snapshot.
async fn record(api: Arc<Api>) {
    let mut snapshots = api.shared.feed.subscribe();
    while snapshots.changed().await.is_ok() && !api.shared.feed.is_closed() {
        if let Some(published) = api.shared.feed.newest() {
            api.live.record(&published);
        }
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    api: Arc<Api>,
    router: Router,
    activity: Arc<Activity>,
) {
    let Some(tls) = tls else { return serve(stream, router, activity).await };
    api.wait_for_cpu().await;
    if let Ok(Ok(stream)) = timeout(REQUEST_TIMEOUT, tls.accept(stream)).await {
        serve(stream, router, activity).await;
    }
}

/// Serves the requests of a connection. Errors of a client are not logged.
pub(super) async fn serve<S>(stream: S, router: Router, activity: Arc<Activity>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let (mut router, activity) = (router.clone(), Arc::clone(&activity));
        async move {
            activity.set_busy(true);
            let response = router.call(request).await;
            activity.set_busy(false);
            response
        }
    });
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let connection = http1::Builder::new()
        // A client may close its side after its last request.
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_header_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES.max(64 << 10))
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = pin!(connection);
    if timeout(MAX_CONNECTION_AGE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(CLOSE_TIMEOUT, connection).await;
    }
}
