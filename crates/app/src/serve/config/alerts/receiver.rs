//! `[[alerts.receiver]]`: where notifications go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use formats::sanitize::sanitize;
use serde::Deserialize;
use ureq::http::{HeaderName, HeaderValue, Uri};

use super::rule::SeverityName;
use super::toggle::Toggle;
use crate::io::output;
use crate::serve::config::{DurationValue, is_loopback};
use crate::serve::{child_program, secret};

/// `[[alerts.receiver]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiverConfig {
    /// Type of the receiver.
    #[serde(rename = "type")]
    pub(crate) kind: ReceiverType,
    /// Minimum severity of alerts.
    #[serde(default = "info")]
    pub(crate) min_severity: SeverityName,
    /// Rules to notify about; empty: all.
    #[serde(default)]
    pub(crate) rules: Vec<String>,
    /// How often the notification of a firing alert is repeated.
    repeat_interval: Option<Toggle<DurationValue>>,
    /// Maximum number of messages per `rate_limit_window`.
    pub(crate) rate_limit: Option<u32>,
    /// Window of `rate_limit`.
    rate_limit_window: Option<DurationValue>,
    /// For webhooks: the URL, or a file that contains it.
    url: Option<String>,
    url_file: Option<PathBuf>,
    /// Payload format.
    pub(crate) format: Option<PayloadFormat>,
    /// File with a token, and the header that carries it.
    token_file: Option<PathBuf>,
    token_header: Option<String>,
    /// Other headers.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// CA certificates that are trusted instead of the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// How often a failed message is retried.
    retries: Option<u32>,
    /// For commands: the program and its arguments.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// Maximum number of concurrent commands.
    max_concurrent: Option<usize>,
    /// Timeout of a webhook or command.
    timeout: Option<DurationValue>,
}

/// Type of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReceiverType {
    Log,
    Webhook,
    Command,
}

/// Payload format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PayloadFormat {
    Json,
    Alertmanager,
    Slack,
}

const fn info() -> SeverityName {
    SeverityName::Info
}

impl ReceiverConfig {
    /// The receiver of a configuration without one.
    pub(super) fn log() -> Self {
        Self {
            kind: ReceiverType::Log,
            min_severity: SeverityName::Info,
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

    pub(crate) fn repeat_interval(&self) -> Option<DurationValue> {
        let default = Some(DurationValue(Duration::from_secs(4 * 3600)));
        self.repeat_interval.unwrap_or(Toggle::Default).or(default, |span| span)
    }

    pub(crate) fn rate_limit_window(&self) -> DurationValue {
        self.rate_limit_window.unwrap_or(DurationValue(Duration::from_secs(600)))
    }

    pub(crate) fn timeout(&self) -> Duration {
        let default = if self.kind == ReceiverType::Command { 30 } else { 5 };
        self.timeout.map_or(Duration::from_secs(default), |span| span.0)
    }

    pub(crate) fn retries(&self) -> u32 {
        self.retries.unwrap_or(3)
    }

    pub(crate) fn max_concurrent(&self) -> usize {
        self.max_concurrent.unwrap_or(4)
    }

    /// Whether the receiver is notified of an alert.
    pub(crate) fn accepts(&self, rule: &str, severity: engine::alert::Severity) -> bool {
        severity >= self.min_severity.severity()
            && (self.rules.is_empty() || self.rules.iter().any(|name| name == rule))
    }

    /// Returns the URL of a webhook, which may itself be a secret.
    pub(crate) fn target(&self) -> Result<String, String> {
        let target = match (&self.url, &self.url_file) {
            (Some(url), None) => url.clone(),
            (None, Some(file)) => secret_in(file)?,
            _ => return Err("a webhook needs either `url` or `url_file`".into()),
        };
        address(&target).map(|_| target)
    }

    /// Returns the header that carries the token.
    pub(crate) fn token(&self) -> Result<Option<(String, String)>, String> {
        let Some(file) = &self.token_file else { return Ok(None) };
        let token = secret_in(file)?;
        let name = self.token_header.clone().unwrap_or_else(|| "Authorization".into());
        let is_bearer = name.eq_ignore_ascii_case("authorization");
        Ok(Some((name, if is_bearer { format!("Bearer {token}") } else { token })))
    }

    /// Adds the errors of this receiver.
    pub(super) fn check(&self, index: usize, rules: &BTreeSet<&str>, errors: &mut Vec<String>) {
        let mut problems = Vec::new();
        for name in self.rules.iter().filter(|name| !rules.contains(name.as_str())) {
            let all: Vec<_> = rules.iter().copied().collect();
            problems.push(format!(
                "unknown rule `{}`; available: {}",
                sanitize(name),
                all.join(", ")
            ));
        }
        if self.rate_limit == Some(0) || self.rate_limit_window().0.is_zero() {
            problems.push(
                "rate_limit must be 1 or more, and rate_limit_window a time such as \"10m\"".into(),
            );
        }
        if self.timeout().is_zero() || self.max_concurrent == Some(0) {
            problems.push("timeout and max_concurrent must be more than 0".into());
        }
        if self.repeat_interval().is_some_and(|every| every.0 < Duration::from_secs(1)) {
            problems.push("repeat_interval must be at least \"1s\", or \"off\"".into());
        }
        self.check_options(&mut problems);
        match self.kind {
            ReceiverType::Log => (),
            ReceiverType::Webhook => self.check_webhook(&mut problems),
            ReceiverType::Command => self.check_command(&mut problems),
        }
        let section = format!("[[alerts.receiver]] number {}", index + 1);
        errors.extend(problems.iter().map(|problem| format!("{section}: {problem}")));
    }

    /// Reports keys that apply to another type.
    fn check_options(&self, problems: &mut Vec<String>) {
        let is_webhook = self.kind == ReceiverType::Webhook;
        let is_command = self.kind == ReceiverType::Command;
        let syncs = self.format == Some(PayloadFormat::Alertmanager);
        for (option, is_set, applies, scope) in [
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
                "other formats than alertmanager, which repeats alerts itself",
            ),
            (
                "rate_limit",
                self.rate_limit.is_some(),
                !syncs,
                "other formats than alertmanager, which groups alerts itself",
            ),
        ] {
            if is_set && !applies {
                problems.push(format!("`{option}` applies only to {scope}"));
            }
        }
    }

    fn check_webhook(&self, problems: &mut Vec<String>) {
        let target = self.target().map_err(|problem| problems.push(problem)).ok();
        let token = self.token().map_err(|problem| problems.push(problem)).ok().flatten();
        if let Some(uri) = target.and_then(|target| address(&target).ok())
            && uri.scheme_str() == Some("http")
            && !is_loopback(uri.host().unwrap_or_default())
            && let Some(secret_name) = self.exposed_secret(&uri, token.is_some())
        {
            problems.push(format!("{secret_name} would be sent unencrypted; use https://"));
        }
        for (name, value) in &self.headers {
            problems.extend(header(name, value).err());
        }
        if self.token_header.is_some() && self.token_file.is_none() {
            problems.push("token_header requires token_file".into());
        }
        if self.retries() > 10 {
            problems.push("retries must be at most 10".into());
        }
        if let Some(Err(error)) = self.ca_file.as_deref().map(secret::certificates) {
            problems.push(output::error_chain(&error));
        }
    }

    /// Returns the secret that a message to this URL would carry.
    fn exposed_secret(&self, uri: &Uri, has_token: bool) -> Option<String> {
        let is_secret_name = |name: &str| {
            let name = name.to_ascii_lowercase();
            SECRET_HEADER_WORDS.iter().any(|word| name.contains(word))
        };
        let in_address = || uri.authority().is_some_and(|part| part.as_str().contains('@'));
        if has_token {
            return Some("the token".into());
        }
        if in_address() {
            return Some("the password in the URL".into());
        }
        let header = self.headers.keys().find(|name| is_secret_name(name));
        header.map(|name| format!("the header `{}`", sanitize(name)))
    }

    fn check_command(&self, problems: &mut Vec<String>) {
        problems.extend(child_program::check(&self.command).err());
    }
}

/// Words in header names that mark a secret.
const SECRET_HEADER_WORDS: [&str; 6] = ["auth", "token", "key", "secret", "cookie", "password"];

/// Parses the URL of a webhook.
fn address(text: &str) -> Result<Uri, String> {
    if !text.starts_with("https://") && !text.starts_with("http://") {
        return Err("the webhook URL must begin with https:// or http://".into());
    }
    let invalid = || "invalid webhook URL; use one such as https://a.example:8443/path".to_owned();
    let uri: Uri = text.parse().map_err(|_| invalid())?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(invalid)?;
    // Whatever follows the host must be a port.
    let authority = uri.authority().map(|part| part.as_str()).unwrap_or_default();
    let after = authority.rsplit_once('@').map_or(authority, |(_, rest)| rest).strip_prefix(host);
    match after.and_then(|after| after.strip_prefix(':')) {
        Some(port) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(uri),
        Some(_) => Err("the port of the webhook URL must be 1 to 65535".into()),
        None => Ok(uri),
    }
}

/// Parses a header.
pub(crate) fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let header_name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{}` is not a valid header name", sanitize(name)))?;
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| format!("the header `{}` has a value that cannot be sent", sanitize(name)))?;
    value.set_sensitive(true);
    Ok((header_name, value))
}

/// Reads a secret from a file.
fn secret_in(file: &Path) -> Result<String, String> {
    secret::line(file).map_err(|error| output::error_chain(&error))
}
