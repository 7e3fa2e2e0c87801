//! Fuzz target: requests of any client.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed check ends the process")]

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::server::connections::Activity;
use super::tests::{PATH, api};
use super::{routes, server};

/// Maximum size of the responses to one input.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    static ROUTER: Router = router();
}

/// The paths of an agent that hides paths of files, without a CPU limit.
fn router() -> Router {
    let api = api(false);
    api.shared.http_cpu.allow_any();
    routes::router(&api)
}

/// Sends bytes to the server on one connection. Returns whether a request was answered with success.
#[must_use]
pub fn http(bytes: &[u8]) -> bool {
    let router = ROUTER.with(Router::clone);
    let response = RUNTIME.with(|runtime| runtime.block_on(exchange(bytes, router)));
    let text = String::from_utf8_lossy(&response);
    assert!(response.is_empty() || text.starts_with("HTTP/1."), "{text}");
    assert!(!text.contains(PATH), "a path is shown: {text}");
    assert!(!text.contains(" 500 Internal Server Error\r\n"), "{text}");
    text.contains(" 200 OK")
}

/// Returns what a client receives that sends bytes and then closes its side.
async fn exchange(bytes: &[u8], router: Router) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(MAX_RESPONSE_BYTES);
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    server::serve(server, router, Activity::new()).await;
    let mut response = Vec::new();
    client.read_to_end(&mut response).await.unwrap();
    response
}
