//! Queries a running agent.

use std::path::Path;

use agent::HttpClient;
use anyhow::{Context, Result, anyhow};
use serde::de::DeserializeOwned;

/// Maximum size of an answer.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Returns the answer of an agent to a request for `path`.
pub(crate) fn get<T: DeserializeOwned>(url: &str, token: Option<&Path>, path: &str) -> Result<T> {
    AgentClient::new(url, token)?.get(path, |answer| serde_json::from_slice(answer))
}

/// A client of one agent.
pub(crate) struct AgentClient {
    url: String,
    client: HttpClient,
}

impl AgentClient {
    /// `url`: a bare address is accepted, as by `serve --listen`.
    pub(crate) fn new(url: &str, token_file: Option<&Path>) -> Result<Self> {
        let scheme = if url.contains("://") { "" } else { "http://" };
        let url = format!("{scheme}{}", url.trim_end_matches('/'));
        let client = HttpClient::to_agent(&url, token_file)?;
        Ok(Self { url, client })
    }

    /// Returns host and port.
    pub(crate) fn name(&self) -> &str {
        self.url.split_once("://").map_or(&*self.url, |(_, name)| name)
    }

    /// Returns the answer to a request for `path`, as `read` understands it.
    pub(crate) fn get<T>(
        &self,
        path: &str,
        read: impl FnOnce(&[u8]) -> serde_json::Result<T>,
    ) -> Result<T> {
        let url = &self.url;
        let answer =
            self.client.get(path, MAX_ANSWER_BYTES).map_err(|error| match error.status {
                None => anyhow!(
                    "{url}: no response from the agent; is `vramscope serve` running there? ({})",
                    error.reason
                ),
                Some(401 | 403) => anyhow!("{url}: authentication required; use --token-file"),
                Some(_) => anyhow!("{url}: {}", error.reason),
            })?;
        let unexpected = || format!("{url}: unexpected response; is this a vramscope agent?");
        read(&answer).with_context(unexpected)
    }
}
