//! The agent's settings: a file in TOML, and options that come before it.

pub(crate) mod actions;
pub(crate) mod alerts;
pub(crate) mod http;
pub(crate) mod incidents;
pub(crate) mod kubernetes;
pub(crate) mod onward;
mod quantities;
pub(crate) mod trace;

pub(crate) use quantities::{Size, Span};

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use engine::metrics::Limits;
use serde::Deserialize;

/// Every setting; what is not in the file has its default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Whom to answer, and how.
    pub(crate) http: http::Http,
    /// What is traced, and what that may cost.
    pub(crate) trace: trace::Trace,
    /// How many series there may be.
    pub(crate) metrics: Metrics,
    /// Built-in alerts.
    pub(crate) alerts: alerts::Alerts,
    /// Snapshots of memory when it runs out.
    pub(crate) incidents: incidents::Incidents,
    /// What may be done without asking.
    pub(crate) actions: actions::Actions,
    /// Names of pods.
    pub(crate) kubernetes: kubernetes::Kubernetes,
    /// Whom to send figures to.
    pub(crate) onward: onward::Onward,
}

/// Whether an address leads to this host.
fn is_loopback(url: &str) -> bool {
    let url = url.parse::<ureq::http::Uri>();
    url.ok().as_ref().and_then(ureq::http::Uri::host).is_some_and(|host| {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

/// How many processes, containers, sites and suspects have series of their own.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Metrics {
    pub(crate) processes: usize,
    pub(crate) containers: usize,
    pub(crate) sites: usize,
    pub(crate) suspects: usize,
}

impl Metrics {
    /// The most of each: every scrape tells them all.
    const MOST: usize = 10_000;

    fn check(&self, wrong: &mut Vec<String>) {
        for (name, number) in [
            ("processes", self.processes),
            ("containers", self.containers),
            ("sites", self.sites),
            ("suspects", self.suspects),
        ] {
            if number > Self::MOST {
                wrong.push(format!(
                    "metrics.{name} is {number}: at most {} can have series of their own",
                    Self::MOST
                ));
            }
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let Limits { processes, containers, sites, suspects } = Limits::default();
        Self { processes, containers, sites, suspects }
    }
}

impl Config {
    /// Reads a file. Whether settings fit together is told by [`Config::check`].
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the settings in {}", path.display()))?;
        // The error of TOML tells line, column and what was expected there.
        toml::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))
    }

    /// What is wrong with the settings as a whole, each in a sentence that says what to do.
    pub(crate) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        self.http.check(&mut wrong);
        self.trace.check(&mut wrong);
        self.metrics.check(&mut wrong);
        self.alerts.check(&mut wrong);
        self.incidents.check(&mut wrong);
        self.actions.check(&mut wrong);
        self.kubernetes.check(&mut wrong);
        self.onward.check(&mut wrong);
        wrong
    }
}
