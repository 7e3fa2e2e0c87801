//! Queries a running agent.

use std::path::Path;

use anyhow::{Result, anyhow};

/// Maximum size of the response.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;

/// Context of a response that is not the expected JSON.
pub(crate) const UNEXPECTED: &str = "unexpected response; is this a vramscope agent?";

/// Returns the answer of the agent at `url` to a request for `path`.
pub(crate) fn fetch(url: &str, path: &str, token_file: Option<&Path>) -> Result<Vec<u8>> {
    // A bare address is accepted, as by `serve --listen`.
    let scheme = if url.contains("://") { "" } else { "http://" };
    let url = format!("{scheme}{}{path}", url.trim_end_matches('/'));
    let client = agent::HttpClient::to_agent(&url, token_file)?;
    client.get(MAX_RESPONSE_BYTES).map_err(|error| match error.status {
        None => anyhow!(
            "{url}: no response from the agent; is `vramscope serve` running there? ({})",
            error.reason
        ),
        Some(401 | 403) => anyhow!("{url}: authentication required; use --token-file"),
        Some(_) => anyhow!("{url}: {}", error.reason),
    })
}
