//! Messages to a receiver over HTTP: tried again with growing pauses, never following redirects, and
//! without a word of tokens or addresses in the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use formats::plain::plain;
use ureq::http::{HeaderName, HeaderValue};
use ureq::tls::{RootCerts, TlsConfig};

use super::Board;
use super::outlet::Message;
use crate::serve::config::alerts::{Action, header};
use crate::serve::secret;
use crate::{fault, output};

/// Before the first repetition; four times as long before each further one.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// How soon the end of the agent is noticed in a pause.
const ATTENTION: Duration = Duration::from_millis(50);

/// See the module.
pub(super) struct Sender {
    agent: ureq::Agent,
    url: String,
    /// The address as messages may tell it.
    receiver: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    retries: u32,
    pause: Duration,
}

/// How an attempt went wrong.
enum Failure {
    /// It may work later.
    Passing(String),
    /// It will not.
    Final(String),
}

impl Sender {
    /// Reads what the action names.
    pub(super) fn new(action: &Action) -> Result<Self, String> {
        let url = action.target()?;
        let roots = match &action.ca_file {
            Some(file) => RootCerts::from(
                secret::certificates(file).map_err(|error| output::reasons(&error))?,
            ),
            None => RootCerts::PlatformVerifier,
        };
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(action.timeout()))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("vramscope/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build()
            .into();
        let mut headers = Vec::new();
        let plain_headers =
            action.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        for (name, value) in plain_headers.chain(action.token()?) {
            headers.push(header(&name, &value)?);
        }
        let receiver = receiver(&url);
        Ok(Self { agent, url, receiver, headers, retries: action.retries(), pause: PAUSE })
    }

    /// Sends what comes in until nothing more can.
    pub(super) fn run(&self, inbox: &Receiver<Message>, board: &Board, stop: &AtomicBool) {
        while let Ok(message) = inbox.recv() {
            fault::point();
            match self.send(&message, stop) {
                Ok(()) => board.count("webhook", "sent"),
                Err(why) => {
                    board.count("webhook", "failed");
                    output::complain(&format!(
                        "the webhook to {} failed ({}): {why}",
                        self.receiver, message.about
                    ));
                }
            }
        }
    }

    fn send(&self, message: &Message, stop: &AtomicBool) -> Result<(), String> {
        let mut pause = self.pause;
        let mut left = self.retries;
        loop {
            match self.attempt(&message.body) {
                Ok(()) => return Ok(()),
                Err(Failure::Final(why)) => return Err(why),
                Err(Failure::Passing(why)) if left == 0 || stop.load(Ordering::Relaxed) => {
                    return Err(why);
                }
                Err(Failure::Passing(_)) => left -= 1,
            }
            wait(pause, stop);
            pause = pause.saturating_mul(4).min(LONGEST);
        }
    }

    fn attempt(&self, body: &str) -> Result<(), Failure> {
        let mut request = self.agent.post(&self.url).header("Content-Type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response = request.send(body).map_err(|error| Failure::Passing(self.reason(&error)))?;
        let status = response.status();
        let why = || match status.as_u16() {
            300..400 => {
                format!("it answered {status}: redirects are not followed, set the final URL")
            }
            _ => format!("it answered {status}"),
        };
        match status.as_u16() {
            200..300 => Ok(()),
            408 | 425 | 429 | 500.. => Err(Failure::Passing(why())),
            _ => Err(Failure::Final(why())),
        }
    }

    /// Errors of the client may hold the address.
    fn reason(&self, error: &ureq::Error) -> String {
        let text = error.to_string().replace(&self.url, &self.receiver);
        plain(&text).into_owned()
    }
}

fn wait(pause: Duration, stop: &AtomicBool) {
    let end = Instant::now() + pause;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(ATTENTION.min(pause));
    }
}

/// The host of an address: paths and names of users may be secrets.
fn receiver(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{}://{}", plain(scheme), plain(host))
}

#[cfg(test)]
impl Sender {
    /// With pauses that a test can wait for.
    pub(super) fn hurried(mut self) -> Self {
        self.pause = Duration::from_millis(5);
        self
    }
}
