//! Webhook receivers over HTTP: retried with backoff, redirects are not followed, and tokens and
//! URLs never appear in the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use formats::sanitize::sanitize;
use ureq::http::{HeaderName, HeaderValue};
use ureq::tls::{RootCerts, TlsConfig};

use super::AlertStore;
use super::notifier::OutgoingMessage;
use crate::fault;
use crate::io::output;
use crate::serve::config::alerts::{ReceiverConfig, header};
use crate::serve::secret;

/// Delay before the first retry; it grows fourfold with each further one.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);

/// Maximum delay.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Poll interval for shutdown while waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Sends messages to one webhook.
pub(super) struct WebhookSender {
    agent: ureq::Agent,
    url: String,
    /// The URL without secrets, for log messages.
    receiver: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    retries: u32,
    backoff: Duration,
}

/// Error of one attempt.
enum SendError {
    /// It may succeed later.
    Transient(String),
    /// It will not succeed.
    Permanent(String),
}

impl WebhookSender {
    /// Reads the files that the receiver names.
    pub(super) fn new(config: &ReceiverConfig) -> Result<Self, String> {
        let url = config.target()?;
        let roots = match &config.ca_file {
            Some(file) => RootCerts::from(
                secret::certificates(file).map_err(|error| output::error_chain(&error))?,
            ),
            None => RootCerts::PlatformVerifier,
        };
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(config.timeout()))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("vramscope/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build()
            .into();
        let mut headers = Vec::new();
        let plain_headers =
            config.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        for (name, value) in plain_headers.chain(config.token()?) {
            headers.push(header(&name, &value)?);
        }
        let receiver = receiver(&url);
        Ok(Self {
            agent,
            url,
            receiver,
            headers,
            retries: config.retries(),
            backoff: INITIAL_BACKOFF,
        })
    }

    /// Sends incoming messages until the queue is closed.
    pub(super) fn run(
        &self,
        inbox: &Receiver<OutgoingMessage>,
        store: &AlertStore,
        stop: &AtomicBool,
    ) {
        while let Ok(message) = inbox.recv() {
            fault::point();
            match self.send(&message, stop) {
                Ok(()) => store.count("webhook", "sent"),
                Err(reason) => {
                    store.count("webhook", "failed");
                    output::log(&format!(
                        "the webhook to {} failed ({}): {reason}",
                        self.receiver, message.label
                    ));
                }
            }
        }
    }

    fn send(&self, message: &OutgoingMessage, stop: &AtomicBool) -> Result<(), String> {
        let mut backoff = self.backoff;
        let mut remaining = self.retries;
        loop {
            match self.attempt(&message.body) {
                Ok(()) => return Ok(()),
                Err(SendError::Permanent(reason)) => return Err(reason),
                Err(SendError::Transient(reason))
                    if remaining == 0 || stop.load(Ordering::Relaxed) =>
                {
                    return Err(reason);
                }
                Err(SendError::Transient(_)) => remaining -= 1,
            }
            wait(backoff, stop);
            backoff = backoff.saturating_mul(4).min(MAX_BACKOFF);
        }
    }

    fn attempt(&self, body: &str) -> Result<(), SendError> {
        let mut request = self.agent.post(&self.url).header("Content-Type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response =
            request.send(body).map_err(|error| SendError::Transient(self.reason(&error)))?;
        let status = response.status();
        let reason = || match status.as_u16() {
            300..400 => {
                format!("it returned {status}: redirects are not followed, set the final URL")
            }
            _ => format!("it returned {status}"),
        };
        match status.as_u16() {
            200..300 => Ok(()),
            408 | 425 | 429 | 500.. => Err(SendError::Transient(reason())),
            _ => Err(SendError::Permanent(reason())),
        }
    }

    /// Removes the URL from an error of the client.
    fn reason(&self, error: &ureq::Error) -> String {
        let text = error.to_string().replace(&self.url, &self.receiver);
        sanitize(&text).into_owned()
    }
}

fn wait(backoff: Duration, stop: &AtomicBool) {
    let end = Instant::now() + backoff;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(POLL_INTERVAL.min(backoff));
    }
}

/// Returns scheme and host of a URL: paths and user names may be secrets.
fn receiver(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{}://{}", sanitize(scheme), sanitize(host))
}

#[cfg(test)]
impl WebhookSender {
    /// Shortens the backoff for tests.
    pub(super) fn with_short_backoff(mut self) -> Self {
        self.backoff = Duration::from_millis(5);
        self
    }
}
