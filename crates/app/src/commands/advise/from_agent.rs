//! Fetches the advice of a running agent.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use formats::report::advice::AdviceReport;
use formats::sanitize::sanitize;

use crate::serve::secret;

/// Timeout of the request and maximum size of the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RESPONSE_BYTES: u64 = 16 << 20;

pub(super) fn fetch_advice(url: &str, token_file: Option<&Path>) -> Result<AdviceReport> {
    let token = token_file.map(secret::line).transpose()?;
    // A bare address is accepted, as by `serve --listen`.
    let scheme = if url.contains("://") { "" } else { "http://" };
    let url = format!("{scheme}{}/api/v1/advice", url.trim_end_matches('/'));
    let settings = ureq::Agent::config_builder()
        .timeout_global(Some(REQUEST_TIMEOUT))
        .http_status_as_error(false);
    let mut request = ureq::Agent::new_with_config(settings.build()).get(&url);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut response = request.call().with_context(|| {
        format!("{url}: no response from the agent; is `vramscope serve` running there?")
    })?;
    let status = response.status();
    let text = response
        .body_mut()
        .with_config()
        .limit(MAX_RESPONSE_BYTES)
        .read_to_string()
        .with_context(|| format!("{url}: cannot read the response"))?;
    match status.as_u16() {
        200 => serde_json::from_str(&text)
            .with_context(|| format!("{url}: unexpected response; is this a vramscope agent?")),
        401 | 403 => bail!("{url}: authentication required; use --token-file"),
        other => bail!("{url}: the agent returned {other}: {}", sanitize(&text)),
    }
}
