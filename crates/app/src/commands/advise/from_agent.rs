//! Fetches the advice of a running agent.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use formats::report::advice::AdviceReport;

/// Maximum size of the response.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;

pub(super) fn fetch_advice(url: &str, token_file: Option<&Path>) -> Result<AdviceReport> {
    // A bare address is accepted, as by `serve --listen`.
    let scheme = if url.contains("://") { "" } else { "http://" };
    let url = format!("{scheme}{}/api/v1/advice", url.trim_end_matches('/'));
    let client = agent::HttpClient::to_agent(&url, token_file)?;
    let text = client.get(MAX_RESPONSE_BYTES).map_err(|error| match error.status {
        None => anyhow!(
            "{url}: no response from the agent; is `vramscope serve` running there? ({})",
            error.reason
        ),
        Some(401 | 403) => anyhow!("{url}: authentication required; use --token-file"),
        Some(_) => anyhow!("{url}: {}", error.reason),
    })?;
    serde_json::from_slice(&text)
        .with_context(|| format!("{url}: unexpected response; is this a vramscope agent?"))
}
