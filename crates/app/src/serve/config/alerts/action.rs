//! `[[alerts.receiver]]`: who is notified of an alert.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use formats::plain::plain;
use serde::Deserialize;
use ureq::http::{HeaderName, HeaderValue, Uri};

use super::rule::Level;
use super::switch::Switch;
use crate::output;
use crate::serve::config::{Span, is_loopback};
use crate::serve::{program, secret};

/// See the module.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Action {
    /// What is done.
    #[serde(rename = "type")]
    pub(crate) kind: Kind,
    /// Only alerts that are at least this bad.
    #[serde(default = "info")]
    pub(crate) min_severity: Level,
    /// Only these rules; all, when there are none.
    #[serde(default)]
    pub(crate) rules: Vec<String>,
    /// How often an alert that goes on is told again.
    repeat_interval: Option<Switch<Span>>,
    /// How many messages there may be in the time `rate_limit_window`.
    pub(crate) rate_limit: Option<u32>,
    /// See `rate_limit`.
    rate_limit_window: Option<Span>,
    /// Of webhooks: where to, or a file that says it.
    url: Option<String>,
    url_file: Option<PathBuf>,
    /// The shape of messages.
    pub(crate) format: Option<Format>,
    /// A file with a token, and the header that carries it.
    token_file: Option<PathBuf>,
    token_header: Option<String>,
    /// Other headers.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// Who may vouch for the receiver, instead of those that the host trusts.
    pub(crate) ca_file: Option<PathBuf>,
    /// How often a message is tried again.
    retries: Option<u32>,
    /// Of commands: the program and its arguments.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// How many may run at the same time.
    max_concurrent: Option<usize>,
    /// How long a webhook or a command may take.
    timeout: Option<Span>,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Log,
    Webhook,
    Command,
}

/// The shape of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    Json,
    Alertmanager,
    Slack,
}

const fn info() -> Level {
    Level::Info
}

impl Action {
    /// The receiver of a configuration without one.
    pub(super) fn log() -> Self {
        Self {
            kind: Kind::Log,
            min_severity: Level::Info,
            rules: Vec::new(),
            repeat_interval: None,
            rate_limit: None,
            rate_limit_window: None,
            url: None,
            url_file: None,
            format: None,
            token_file: None,
            token_header: None,
            headers: BTreeMap::new(),
            ca_file: None,
            retries: None,
            command: Vec::new(),
            max_concurrent: None,
            timeout: None,
        }
    }

    pub(crate) fn repeat_interval(&self) -> Option<Span> {
        let usual = Some(Span(Duration::from_secs(4 * 3600)));
        self.repeat_interval.unwrap_or(Switch::Default).or(usual, |span| span)
    }

    pub(crate) fn rate_limit_window(&self) -> Span {
        self.rate_limit_window.unwrap_or(Span(Duration::from_secs(600)))
    }

    pub(crate) fn timeout(&self) -> Duration {
        let usual = if self.kind == Kind::Command { 30 } else { 5 };
        self.timeout.map_or(Duration::from_secs(usual), |span| span.0)
    }

    pub(crate) fn retries(&self) -> u32 {
        self.retries.unwrap_or(3)
    }

    pub(crate) fn max_concurrent(&self) -> usize {
        self.max_concurrent.unwrap_or(4)
    }

    /// Whether an alert is told at all.
    pub(crate) fn wants(&self, rule: &str, severity: engine::alert::Severity) -> bool {
        severity >= self.min_severity.severity()
            && (self.rules.is_empty() || self.rules.iter().any(|name| name == rule))
    }

    /// Where a webhook goes to. It may be a secret by itself.
    pub(crate) fn target(&self) -> Result<String, String> {
        let target = match (&self.url, &self.url_file) {
            (Some(url), None) => url.clone(),
            (None, Some(file)) => secret_in(file)?,
            _ => return Err("a webhook needs either `url` or `url_file`".into()),
        };
        address(&target).map(|_| target)
    }

    /// The header that carries the token.
    pub(crate) fn token(&self) -> Result<Option<(String, String)>, String> {
        let Some(file) = &self.token_file else { return Ok(None) };
        let token = secret_in(file)?;
        let name = self.token_header.clone().unwrap_or_else(|| "Authorization".into());
        let is_usual = name.eq_ignore_ascii_case("authorization");
        Ok(Some((name, if is_usual { format!("Bearer {token}") } else { token })))
    }

    /// What is wrong with it.
    pub(super) fn check(&self, index: usize, rules: &BTreeSet<&str>, wrong: &mut Vec<String>) {
        let mut found = Vec::new();
        for name in self.rules.iter().filter(|name| !rules.contains(name.as_str())) {
            let all: Vec<_> = rules.iter().copied().collect();
            found.push(format!("unknown rule `{}`; available: {}", plain(name), all.join(", ")));
        }
        if self.rate_limit == Some(0) || self.rate_limit_window().0.is_zero() {
            found.push(
                "rate_limit must be 1 or more, and rate_limit_window a time such as \"10m\"".into(),
            );
        }
        if self.timeout().is_zero() || self.max_concurrent == Some(0) {
            found.push("timeout and max_concurrent must be more than 0".into());
        }
        if self.repeat_interval().is_some_and(|every| every.0 < Duration::from_secs(1)) {
            found.push("repeat_interval must be at least \"1s\", or \"off\"".into());
        }
        self.check_options(&mut found);
        match self.kind {
            Kind::Log => (),
            Kind::Webhook => self.check_webhook(&mut found),
            Kind::Command => self.check_command(&mut found),
        }
        let place = format!("[[alerts.receiver]] number {}", index + 1);
        wrong.extend(found.iter().map(|why| format!("{place}: {why}")));
    }

    /// Keys that are for another type.
    fn check_options(&self, found: &mut Vec<String>) {
        let is_webhook = self.kind == Kind::Webhook;
        let is_command = self.kind == Kind::Command;
        let syncs = self.format == Some(Format::Alertmanager);
        for (option, is_there, is_fine, whose) in [
            ("url", self.url.is_some(), is_webhook, "webhook receivers"),
            ("url_file", self.url_file.is_some(), is_webhook, "webhook receivers"),
            ("format", self.format.is_some(), is_webhook, "webhook receivers"),
            ("token_file", self.token_file.is_some(), is_webhook, "webhook receivers"),
            ("token_header", self.token_header.is_some(), is_webhook, "webhook receivers"),
            ("headers", !self.headers.is_empty(), is_webhook, "webhook receivers"),
            ("ca_file", self.ca_file.is_some(), is_webhook, "webhook receivers"),
            ("retries", self.retries.is_some(), is_webhook, "webhook receivers"),
            ("command", !self.command.is_empty(), is_command, "command receivers"),
            ("max_concurrent", self.max_concurrent.is_some(), is_command, "command receivers"),
            (
                "timeout",
                self.timeout.is_some(),
                is_webhook || is_command,
                "webhook and command receivers",
            ),
            (
                "repeat_interval",
                self.repeat_interval.is_some(),
                !syncs,
                "other formats than alertmanager, which repeats by itself",
            ),
            (
                "rate_limit",
                self.rate_limit.is_some(),
                !syncs,
                "other formats than alertmanager, which groups by itself",
            ),
        ] {
            if is_there && !is_fine {
                found.push(format!("`{option}` applies only to {whose}"));
            }
        }
    }

    fn check_webhook(&self, found: &mut Vec<String>) {
        let target = self.target().map_err(|why| found.push(why)).ok();
        let token = self.token().map_err(|why| found.push(why)).ok().flatten();
        if let Some(uri) = target.and_then(|target| address(&target).ok())
            && uri.scheme_str() == Some("http")
            && !is_loopback(uri.host().unwrap_or_default())
            && let Some(what) = self.secret_to(&uri, token.is_some())
        {
            found.push(format!("{what} would be sent unencrypted; use https://"));
        }
        for (name, value) in &self.headers {
            found.extend(header(name, value).err());
        }
        if self.token_header.is_some() && self.token_file.is_none() {
            found.push("token_header requires token_file".into());
        }
        if self.retries() > 10 {
            found.push("retries must be at most 10".into());
        }
        if let Some(Err(error)) = self.ca_file.as_deref().map(secret::certificates) {
            found.push(output::reasons(&error));
        }
    }

    /// A secret that a message to this address carries.
    fn secret_to(&self, uri: &Uri, has_token: bool) -> Option<String> {
        let sounds = |name: &str| {
            let name = name.to_ascii_lowercase();
            SECRETS.iter().any(|word| name.contains(word))
        };
        let in_address = || uri.authority().is_some_and(|place| place.as_str().contains('@'));
        if has_token {
            return Some("the token".into());
        }
        if in_address() {
            return Some("the password in the URL".into());
        }
        let header = self.headers.keys().find(|name| sounds(name));
        header.map(|name| format!("the header `{}`", plain(name)))
    }

    fn check_command(&self, found: &mut Vec<String>) {
        found.extend(program::check(&self.command).err());
    }
}

/// Names of headers that have one of these in them hold secrets.
const SECRETS: [&str; 6] = ["auth", "token", "key", "secret", "cookie", "password"];

/// The address of a webhook, if something could answer there.
fn address(text: &str) -> Result<Uri, String> {
    if !text.starts_with("https://") && !text.starts_with("http://") {
        return Err("the webhook URL must begin with https:// or http://".into());
    }
    let wrong = || "invalid webhook URL; use one such as https://a.example:8443/path".to_owned();
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
    // What follows the host is a port, if it is anything.
    let place = uri.authority().map(|place| place.as_str()).unwrap_or_default();
    let after = place.rsplit_once('@').map_or(place, |(_, place)| place).strip_prefix(host);
    match after.and_then(|after| after.strip_prefix(':')) {
        Some(port) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(uri),
        Some(_) => Err("the port of the webhook URL must be 1 to 65535".into()),
        None => Ok(uri),
    }
}

/// A header, if it can be sent.
pub(crate) fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let known = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{}` is not a valid header name", plain(name)))?;
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| format!("the header `{}` has a value that cannot be sent", plain(name)))?;
    value.set_sensitive(true);
    Ok((known, value))
}

/// A secret in a file.
fn secret_in(file: &Path) -> Result<String, String> {
    secret::line(file).map_err(|error| output::reasons(&error))
}
