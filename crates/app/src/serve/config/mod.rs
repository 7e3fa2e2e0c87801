//! Configuration of the agent: a TOML file, and command-line options that take precedence.

pub(crate) mod actions;
pub(crate) mod alerts;
mod directory;
#[cfg(test)]
mod example;
pub(crate) mod exporters;
pub(crate) mod http;
pub(crate) mod incidents;
pub(crate) mod kubernetes;
pub(crate) mod trace;
mod units;

pub(crate) use units::{ByteSize, DurationValue};

use std::fs::File;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use engine::metrics::SeriesLimits;
use serde::Deserialize;

use super::trusted_path;
use super::trusted_path::Refusal;

/// The configuration; missing keys have their defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// State directory: contains `incidents` and the log of actions.
    pub(crate) state_dir: PathBuf,
    /// HTTP API.
    pub(crate) http: http::HttpConfig,
    /// Tracing options and budget.
    pub(crate) trace: trace::TraceConfig,
    /// Limits on the number of series.
    pub(crate) metrics: MetricsConfig,
    /// Alert rules and receivers.
    pub(crate) alerts: alerts::AlertsConfig,
    /// Snapshots at out-of-memory errors.
    pub(crate) incidents: incidents::IncidentsConfig,
    /// Automatic actions.
    pub(crate) actions: actions::ActionsConfig,
    /// Sources of pod names.
    pub(crate) kubernetes: kubernetes::KubernetesConfig,
    /// Exporters of metrics, profiles and tables.
    pub(crate) exporters: exporters::ExportersConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: Self::STATE_DIR.into(),
            http: http::HttpConfig::default(),
            trace: trace::TraceConfig::default(),
            metrics: MetricsConfig::default(),
            alerts: alerts::AlertsConfig::default(),
            incidents: incidents::IncidentsConfig::default(),
            actions: actions::ActionsConfig::default(),
            kubernetes: kubernetes::KubernetesConfig::default(),
            exporters: exporters::ExportersConfig::default(),
        }
    }
}

/// Whether a URL refers to this host.
fn is_loopback(url: &str) -> bool {
    let url = url.parse::<ureq::http::Uri>();
    url.ok().as_ref().and_then(ureq::http::Uri::host).is_some_and(|host| {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

/// Maximum number of processes, containers, sites and suspects with their own series.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MetricsConfig {
    pub(crate) max_processes: usize,
    pub(crate) max_containers: usize,
    pub(crate) max_sites: usize,
    pub(crate) max_suspects: usize,
}

impl MetricsConfig {
    /// Maximum of each limit, because every scrape includes all series.
    const MAX_SERIES_LIMIT: usize = 10_000;

    fn check(&self, errors: &mut Vec<String>) {
        for (name, number) in [
            ("max_processes", self.max_processes),
            ("max_containers", self.max_containers),
            ("max_sites", self.max_sites),
            ("max_suspects", self.max_suspects),
        ] {
            if number > Self::MAX_SERIES_LIMIT {
                errors.push(format!(
                    "metrics.{name} is {number}: at most {} can have series of their own",
                    Self::MAX_SERIES_LIMIT
                ));
            }
        }
    }
}

impl Default for MetricsConfig {
    fn default() -> Self {
        let SeriesLimits { processes, containers, sites, suspects } = SeriesLimits::default();
        Self {
            max_processes: processes,
            max_containers: containers,
            max_sites: sites,
            max_suspects: suspects,
        }
    }
}

impl Config {
    /// Default of `state_dir`.
    pub(crate) const STATE_DIR: &'static str = "/var/lib/vramscope";

    /// Returns the directory of incidents.
    pub(crate) fn incidents_dir(&self) -> PathBuf {
        self.state_dir.join(incidents::IncidentsConfig::DIR_NAME)
    }

    /// Reads a file; [`Config::check`] validates it. A configuration that runs commands or sends
    /// signals must be in a file that other users cannot change.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read the configuration {}", path.display());
        // Read the same file that was checked.
        let (file, refusal) = match trusted_path::file(path) {
            Ok(file) => (file, None),
            Err(refusal) => (File::open(path).with_context(cannot)?, Some(refusal)),
        };
        let text = std::io::read_to_string(file).with_context(cannot)?;
        // The TOML error has line, column and the expected value.
        let config: Self =
            toml::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        match refusal.filter(|_| config.takes_actions()) {
            None => Ok(config),
            Some(Refusal::Foreign(reason) | Refusal::Exposed(reason)) => {
                bail!("configuration with commands or actions: {reason}")
            }
            // A pipe, for example.
            Some(Refusal::Failed(error)) => {
                Err(error).context("configuration with commands or actions must be in a file")
            }
        }
    }

    /// Whether the agent runs commands, or sends signals to processes.
    fn takes_actions(&self) -> bool {
        !self.actions.allow.is_empty() || self.alerts.has_commands()
    }

    /// Returns all problems of the configuration, each with advice.
    pub(crate) fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        self.http.check(&mut errors);
        self.trace.check(&mut errors);
        self.metrics.check(&mut errors);
        self.alerts.check(&mut errors);
        self.incidents.check(&mut errors);
        if !self.state_dir.is_absolute() {
            errors.push(format!(
                "state_dir is {}: must be an absolute path, such as {}",
                self.state_dir.display(),
                Self::STATE_DIR
            ));
        }
        // The check may run as a user who has no access to the agent's default directory.
        let is_default = self.state_dir == Path::new(Self::STATE_DIR);
        let counts = |kind| !(is_default && kind == ErrorKind::PermissionDenied);
        errors
            .extend(self.state().err().filter(|(kind, _)| counts(*kind)).map(|(_, reason)| reason));
        self.actions.check(&self.incidents, &mut errors);
        self.kubernetes.check(&mut errors);
        self.exporters.check(&mut errors);
        errors
    }

    /// Checks the state directory, which incidents and the log of actions need.
    pub(crate) fn check_state(&self) -> Result<(), String> {
        self.state().map_err(|(_, reason)| reason)
    }

    fn state(&self) -> Result<(), (ErrorKind, String)> {
        let state = &self.state_dir;
        let is_needed = self.incidents.enabled || !self.actions.allow.is_empty();
        if !is_needed || !state.is_absolute() {
            return Ok(());
        }
        let describe = |(kind, reason)| {
            (kind, format!("state_dir: {reason}; set another with state_dir or --state-dir"))
        };
        self.trust_state(false).map_err(describe)?;
        directory::writable(state).map_err(describe)
    }

    /// Creates missing directories of the agent, private to its user. Directories that other users
    /// control are refused; failures to create one are reported when it is needed.
    pub(crate) fn make_state(&self) -> Result<(), String> {
        let is_needed = self.incidents.enabled || !self.actions.allow.is_empty();
        if is_needed { self.trust_state(true).map_err(|(_, reason)| reason) } else { Ok(()) }
    }

    fn trust_state(&self, create: bool) -> Result<(), (ErrorKind, String)> {
        let state = &self.state_dir;
        let checked = trusted_path::directory(state, create).and_then(|is_private| {
            let create_incidents = create && self.incidents.enabled;
            let check = || {
                trusted_path::subdirectory(
                    state,
                    incidents::IncidentsConfig::DIR_NAME,
                    create_incidents,
                )
            };
            if is_private { check() } else { Ok(false) }
        });
        match checked {
            Err(Refusal::Foreign(reason)) => Err((ErrorKind::PermissionDenied, reason)),
            Err(Refusal::Exposed(reason)) => Err((ErrorKind::Other, reason)),
            Ok(_) | Err(Refusal::Failed(_)) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(path: &Path, more: &str) -> Vec<String> {
        let text = format!("state_dir = \"{}\"\n[incidents]\n{more}", path.display());
        toml::from_str::<Config>(&text).unwrap().check()
    }

    #[test]
    fn invalid_state_dir_fails_config_check() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (path, word) in [
            (&*file, "is not a directory"),
            (&file.join("below"), "is not a directory"),
            (Path::new("/proc/x"), "cannot write"),
        ] {
            let found = state(path, "");
            assert!(found.len() == 1 && found[0].contains(word), "{}: {found:?}", path.display());
            assert!(found[0].starts_with("state_dir: "), "{found:?}");
        }
        assert_eq!(state(&file, "enabled = false"), [""; 0], "nothing is written");
        assert_eq!(state(&dir.path().join("new/one"), ""), [""; 0]);
        assert!(!dir.path().join("new").exists(), "a check creates nothing");
    }

    #[test]
    fn http_files_are_read_by_the_config_check() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
        let pipe = dir.path().join("pipe");
        let created = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(created.success());
        let (token, pipe) = (token.display(), pipe.display());
        let state = dir.path().display();
        for (text, word) in [
            ("token_file = \"/nowhere/token\"".to_owned(), "/nowhere/token"),
            (format!("token_file = \"{token}\""), "chmod 600"),
            // No process writes to it, so opening it would block.
            (format!("token_file = \"{pipe}\""), "not a regular file"),
            (
                format!("tls_cert_file = \"{pipe}\"\ntls_key_file = \"{pipe}\""),
                "not a regular file",
            ),
            (
                "tls_cert_file = \"/nowhere/c\"\ntls_key_file = \"/nowhere/k\"".to_owned(),
                "/nowhere/c",
            ),
        ] {
            let text = format!("state_dir = \"{state}\"\n[http]\n{text}");
            let found = toml::from_str::<Config>(&text).unwrap().check();
            assert!(found.len() == 1 && found[0].contains(word), "{text}: {found:?}");
        }
    }
}
