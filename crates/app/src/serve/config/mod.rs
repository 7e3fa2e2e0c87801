//! The agent's configuration: a file in TOML, and options that take precedence.

pub(crate) mod actions;
pub(crate) mod alerts;
#[cfg(test)]
mod example;
mod folder;
pub(crate) mod http;
pub(crate) mod incidents;
pub(crate) mod kubernetes;
pub(crate) mod onward;
mod quantities;
pub(crate) mod trace;

pub(crate) use quantities::{Size, Span};

use std::fs::File;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use engine::metrics::Limits;
use serde::Deserialize;

use super::trust::{self, Refusal};

/// Every key; what is not in the file has its default.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The agent's directory: incidents are in `incidents` in it, and the log of actions.
    pub(crate) state_dir: PathBuf,
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
    /// Where metrics, profiles and tables are sent.
    pub(crate) exporters: onward::Onward,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: Self::STATE_DIR.into(),
            http: http::Http::default(),
            trace: trace::Trace::default(),
            metrics: Metrics::default(),
            alerts: alerts::Alerts::default(),
            incidents: incidents::Incidents::default(),
            actions: actions::Actions::default(),
            kubernetes: kubernetes::Kubernetes::default(),
            exporters: onward::Onward::default(),
        }
    }
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
    pub(crate) max_processes: usize,
    pub(crate) max_containers: usize,
    pub(crate) max_sites: usize,
    pub(crate) max_suspects: usize,
}

impl Metrics {
    /// The most of each: every scrape tells them all.
    const MOST: usize = 10_000;

    fn check(&self, wrong: &mut Vec<String>) {
        for (name, number) in [
            ("max_processes", self.max_processes),
            ("max_containers", self.max_containers),
            ("max_sites", self.max_sites),
            ("max_suspects", self.max_suspects),
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
        Self {
            max_processes: processes,
            max_containers: containers,
            max_sites: sites,
            max_suspects: suspects,
        }
    }
}

impl Config {
    /// The default of `state_dir`.
    pub(crate) const STATE_DIR: &'static str = "/var/lib/vramscope";

    /// The directory that incidents are in.
    pub(crate) fn incidents_dir(&self) -> PathBuf {
        self.state_dir.join(incidents::Incidents::FOLDERS)
    }

    /// Reads a file. Whether the keys fit together is checked by [`Config::check`].
    /// A configuration that runs commands or sends signals must be in a file that other users cannot change.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read the configuration {}", path.display());
        // What was checked is what is read.
        let (file, refusal) = match trust::file(path) {
            Ok(file) => (file, None),
            Err(refusal) => (File::open(path).with_context(cannot)?, Some(refusal)),
        };
        let text = std::io::read_to_string(file).with_context(cannot)?;
        // The error of TOML tells line, column and what was expected there.
        let config: Self =
            toml::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        match refusal.filter(|_| config.acts()) {
            None => Ok(config),
            Some(Refusal::Foreign(why) | Refusal::Exposed(why)) => {
                bail!("configuration with commands or actions: {why}")
            }
            // A pipe, say.
            Some(Refusal::Failed(error)) => {
                Err(error).context("configuration with commands or actions must be in a file")
            }
        }
    }

    /// Whether the agent runs commands, or sends signals to processes.
    fn acts(&self) -> bool {
        !self.actions.allow.is_empty() || self.alerts.has_commands()
    }

    /// What is wrong with the configuration as a whole, each in a sentence that says what to do.
    pub(crate) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        self.http.check(&mut wrong);
        self.trace.check(&mut wrong);
        self.metrics.check(&mut wrong);
        self.alerts.check(&mut wrong);
        self.incidents.check(&mut wrong);
        if !self.state_dir.is_absolute() {
            wrong.push(format!(
                "state_dir is {}: must be an absolute path, such as {}",
                self.state_dir.display(),
                Self::STATE_DIR
            ));
        }
        // A configuration may be checked by another user than the agent's, whose usual directory it is.
        let usual = self.state_dir == Path::new(Self::STATE_DIR);
        let counts = |kind| !(usual && kind == ErrorKind::PermissionDenied);
        wrong.extend(self.state().err().filter(|(kind, _)| counts(*kind)).map(|(_, why)| why));
        self.actions.check(&self.incidents, &mut wrong);
        self.kubernetes.check(&mut wrong);
        self.exporters.check(&mut wrong);
        wrong
    }

    /// Why the agent cannot keep what it is to keep: folders of incidents and the log of actions need a
    /// place.
    pub(crate) fn check_state(&self) -> Result<(), String> {
        self.state().map_err(|(_, why)| why)
    }

    fn state(&self) -> Result<(), (ErrorKind, String)> {
        let state = &self.state_dir;
        let is_needed = self.incidents.enabled || !self.actions.allow.is_empty();
        if !is_needed || !state.is_absolute() {
            return Ok(());
        }
        let refused = |(kind, why)| {
            (kind, format!("state_dir: {why}; set another with state_dir or --state-dir"))
        };
        self.trust_state(false).map_err(refused)?;
        folder::writable(state).map_err(refused)
    }

    /// Makes the agent's directories where they are missing, for its user alone. Ones that other users
    /// control are refused; ones that cannot be made are reported when they are needed.
    pub(crate) fn make_state(&self) -> Result<(), String> {
        let is_needed = self.incidents.enabled || !self.actions.allow.is_empty();
        if is_needed { self.trust_state(true).map_err(|(_, why)| why) } else { Ok(()) }
    }

    fn trust_state(&self, create: bool) -> Result<(), (ErrorKind, String)> {
        let state = &self.state_dir;
        let checked = trust::directory(state, create).and_then(|is_private| {
            let is_made = create && self.incidents.enabled;
            let check = || trust::subdirectory(state, incidents::Incidents::FOLDERS, is_made);
            if is_private { check() } else { Ok(false) }
        });
        match checked {
            Err(Refusal::Foreign(why)) => Err((ErrorKind::PermissionDenied, why)),
            Err(Refusal::Exposed(why)) => Err((ErrorKind::Other, why)),
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
    fn a_state_folder_that_is_none_is_told_before_it_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
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
        assert_eq!(state(&folder.path().join("new/one"), ""), [""; 0]);
        assert!(!folder.path().join("new").exists(), "a check makes nothing");
    }

    #[test]
    fn files_of_http_are_read_by_the_check() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let (token, pipe) = (token.display(), pipe.display());
        let state = folder.path().display();
        for (text, word) in [
            ("token_file = \"/nowhere/token\"".to_owned(), "/nowhere/token"),
            (format!("token_file = \"{token}\""), "chmod 600"),
            // Nobody writes to it: who opens it waits.
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
