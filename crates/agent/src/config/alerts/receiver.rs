//! `[[alerts.receiver]]`: where notifications go.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use engine::alert::Severity;
use engine::alert::builtin::RULE_NAMES;
use formats::sanitize::error_chain;
use serde::Deserialize;

use super::unknown_rule;
use crate::config::endpoint::{AuthScheme, Credentials, HttpEndpoint};
use crate::config::section::section;
use crate::config::{Choice, DurationValue, problems};
use crate::delivery::child_program;
use crate::files::secret;

/// Name in `rules` for messages about incidents, which only receivers that name it get.
pub(crate) const INCIDENT_RULE: &str = "incident";

section! {
    /// A receiver of alerts.
    ReceiverConfig {
        /// `log`, `webhook` or `command`.
        #[serde(rename = "type")]
        kind: ReceiverType = ReceiverType::Log, default "\"log\"";
        /// Lowest severity that is sent: `info`, `warning` or `critical`.
        min_severity: Choice<Severity> = Choice(Severity::Info), default "\"info\"";
        /// Only these rules; empty: all. `incident` is a message for each incident, and must be named.
        rules: Vec<String> = Vec::new(), default "[]";
        /// Send an alert that still fires again after this time; `0s`: never.
        repeat_interval: DurationValue = DurationValue::secs(4 * 3600), default "\"4h\"";
        /// Maximum number of messages per `rate_limit_window`.
        rate_limit: usize = 20, default "20";
        /// Window of `rate_limit`.
        rate_limit_window: DurationValue = DurationValue::secs(600), default "\"10m\"";
        /// Limit of one webhook request (at most 1m) or command.
        timeout: Option<DurationValue> = None, example "\"30s\"";
        /// Webhook: URL. One of `url` and `url_file` is required.
        url: Option<String> = None, example "\"https://alerts.example/vramscope\"";
        /// Webhook: secret file with the URL, if the URL is a secret.
        url_file: Option<PathBuf> = None, example "\"/etc/vramscope/webhook-url\"";
        /// Webhook: message format, `json` or `slack`.
        format: Option<PayloadFormat> = None, example "\"json\"";
        /// Webhook: secret file with a token.
        token_file: Option<PathBuf> = None, example "\"/etc/vramscope/webhook-token\"";
        /// Webhook: header for the token. By default it is sent as a bearer token.
        token_header: Option<String> = None, example "\"X-Api-Key\"";
        /// Webhook: more headers.
        headers: BTreeMap<String, String> = BTreeMap::new(), example "{ X-Team = \"ml\" }";
        /// Webhook: certificates to trust instead of the system's, in PEM.
        ca_file: Option<PathBuf> = None, example "\"/etc/vramscope/webhook-ca.pem\"";
        /// Webhook: how long one message is retried, at most 1h.
        max_retry_time: Option<DurationValue> = None, example "\"1m\"";
        /// Command: absolute path of a program, and its arguments. There is no shell.
        command: Vec<String> = Vec::new(), example "[\"/usr/local/bin/on-alert\", \"--page\"]";
    }
}

/// Type of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiverType {
    /// Log messages.
    Log,
    /// POST requests.
    Webhook,
    /// A program.
    Command,
}

/// Payload format of a webhook.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PayloadFormat {
    /// The agent's own format.
    Json,
    /// Slack's incoming webhooks, and compatible ones.
    Slack,
}

impl ReceiverConfig {
    /// Limit of one request or command.
    pub(crate) fn timeout(&self) -> Duration {
        let default = if self.kind == ReceiverType::Command { 30 } else { 5 };
        self.timeout.unwrap_or(DurationValue::secs(default)).0
    }

    /// How long one message is retried.
    pub(crate) fn max_retry_time(&self) -> Duration {
        self.max_retry_time.unwrap_or(DurationValue::secs(60)).0
    }

    /// Whether the receiver is notified of an alert.
    pub(crate) fn accepts(&self, rule: &str, severity: Severity) -> bool {
        let is_named = self.rules.iter().any(|name| name == rule);
        let is_wanted = self.rules.is_empty() && rule != INCIDENT_RULE;
        severity >= self.min_severity.0 && (is_named || is_wanted)
    }

    /// Returns the endpoint of a webhook.
    pub(crate) fn endpoint(&self) -> Result<HttpEndpoint, String> {
        let (key, url) = match (&self.url, &self.url_file) {
            (Some(url), None) => ("url", url.clone()),
            (None, Some(file)) => {
                let url = secret::line(file).map_err(|error| error_chain(error.as_ref()))?;
                ("url_file", url)
            }
            _ => return Err("a webhook needs either `url` or `url_file`".into()),
        };
        let scheme = match &self.token_header {
            Some(name) if !name.eq_ignore_ascii_case("authorization") => {
                AuthScheme::Header(name.clone())
            }
            _ => AuthScheme::Bearer,
        };
        let credentials = self.token_file.clone().map(|file| Credentials { file, scheme });
        let (headers, ca_file) = (self.headers.clone(), self.ca_file.clone());
        let (timeout, is_direct) = (self.timeout(), false);
        Ok(HttpEndpoint { key, url, timeout, credentials, headers, ca_file, is_direct })
    }

    /// Returns its problems, each with advice.
    pub(super) fn problems(&self) -> Vec<String> {
        let names: Vec<&str> = RULE_NAMES.into_iter().chain([INCIDENT_RULE]).collect();
        let mut found: Vec<String> =
            self.rules.iter().filter_map(|name| unknown_rule(name, &names)).collect();
        let repeats = self.repeat_interval.0;
        found.extend(problems([
            (
                self.rate_limit > 0 && !self.rate_limit_window.0.is_zero(),
                "`rate_limit` and `rate_limit_window` must be more than 0",
            ),
            (!self.timeout().is_zero(), "`timeout` must be more than 0"),
            (
                repeats.is_zero() || repeats >= Duration::from_secs(1),
                "`repeat_interval` must be at least 1s, or 0s for never",
            ),
            (
                self.max_retry_time() <= Duration::from_hours(1),
                "`max_retry_time` must be at most 1h",
            ),
            (
                self.token_header.is_none() || self.token_file.is_some(),
                "`token_header` requires `token_file`",
            ),
        ]));
        self.check_type(&mut found);
        match self.kind {
            ReceiverType::Log => (),
            ReceiverType::Webhook => match self.endpoint() {
                Ok(endpoint) => found.extend(endpoint.check()),
                Err(problem) => found.push(problem),
            },
            ReceiverType::Command => found.extend(child_program::check(&self.command).err()),
        }
        found
    }

    /// Reports keys that apply to another type.
    fn check_type(&self, problems: &mut Vec<String>) {
        let is_webhook = self.kind == ReceiverType::Webhook;
        let webhook_keys = [
            ("url", self.url.is_some()),
            ("url_file", self.url_file.is_some()),
            ("format", self.format.is_some()),
            ("token_file", self.token_file.is_some()),
            ("headers", !self.headers.is_empty()),
            ("ca_file", self.ca_file.is_some()),
            ("max_retry_time", self.max_retry_time.is_some()),
        ];
        for (key, _) in webhook_keys.iter().filter(|(_, is_set)| *is_set && !is_webhook) {
            problems.push(format!("`{key}` applies only to webhook receivers"));
        }
        if !self.command.is_empty() && self.kind != ReceiverType::Command {
            problems.push("`command` applies only to command receivers".into());
        }
        if self.timeout.is_some() && self.kind == ReceiverType::Log {
            problems.push("`timeout` applies only to webhook and command receivers".into());
        }
    }
}
