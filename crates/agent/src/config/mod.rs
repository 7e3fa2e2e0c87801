//! Configuration of the agent: a TOML file, and command-line options that take precedence.

pub mod alerts;
mod directory;
pub(crate) mod endpoint;
pub mod exporters;
pub mod http;
pub mod incidents;
pub mod kubernetes;
pub mod log;
#[cfg(test)]
mod reference;
mod section;
pub mod trace;
mod units;

pub use units::{ByteSize, Choice, DurationValue, Ratio};

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use engine::metrics::SeriesLimits;

use crate::files::secret;
use crate::files::trusted_path::{self, Refusal};
use section::section;

section! {
    /// The configuration.
    Config {
        /// Directory for incidents, an absolute path; same as `--state-dir`. One agent at a time uses
        /// it.
        state_dir: PathBuf = Self::STATE_DIR.into(), default "\"/var/lib/vramscope\"";
        /// Level and format of log messages.
        log: log::LogConfig = log::LogConfig::default(), section "";
        /// HTTP API.
        http: http::HttpConfig = http::HttpConfig::default(), section "";
        /// Tracing options and budget.
        trace: trace::TraceConfig = trace::TraceConfig::default(), section "";
        /// Limits on the number of series.
        metrics: MetricsConfig = MetricsConfig::default(), section "";
        /// Alert rules and receivers.
        alerts: alerts::AlertsConfig = alerts::AlertsConfig::default(), section "";
        /// Snapshots at out-of-memory errors.
        incidents: incidents::IncidentsConfig = incidents::IncidentsConfig::default(), section "";
        /// Sources of pod names.
        kubernetes: kubernetes::KubernetesConfig = kubernetes::KubernetesConfig::default(), section "";
        /// Exporters of metrics and tables.
        exporters: exporters::ExportersConfig = exporters::ExportersConfig::default(), section "";
    }
}

section! {
    /// How many objects have their own series, at most 10000 each. The others are summed up as
    /// `other`.
    MetricsConfig {
        /// Processes.
        max_processes: usize = SeriesLimits::default().processes, default "64";
        /// Containers.
        max_containers: usize = SeriesLimits::default().containers, default "64";
        /// Sites.
        max_sites: usize = SeriesLimits::default().sites, default "64";
        /// Leak suspects.
        max_suspects: usize = SeriesLimits::default().suspects, default "32";
    }
}

impl MetricsConfig {
    /// Maximum of each limit, because every scrape includes all series.
    const MAX_SERIES_LIMIT: usize = 10_000;

    /// Returns the limits of the collector.
    pub(crate) const fn limits(&self) -> SeriesLimits {
        SeriesLimits {
            processes: self.max_processes,
            containers: self.max_containers,
            sites: self.max_sites,
            suspects: self.max_suspects,
        }
    }

    fn check(&self, errors: &mut Vec<String>) {
        let all = [self.max_processes, self.max_containers, self.max_sites, self.max_suspects];
        if all.into_iter().any(|number| number > Self::MAX_SERIES_LIMIT) {
            let max = Self::MAX_SERIES_LIMIT;
            errors.push(format!("[metrics] at most {max} of a kind can have series of their own"));
        }
    }
}

/// Returns the problems of values that are not valid.
fn problems<const N: usize>(checks: [(bool, &str); N]) -> impl Iterator<Item = String> {
    checks.into_iter().filter(|(is_valid, _)| !is_valid).map(|(_, problem)| problem.to_owned())
}

impl Config {
    /// Default of `state_dir`.
    pub const STATE_DIR: &'static str = "/var/lib/vramscope";

    /// Returns the directory of incidents.
    pub(crate) fn incidents_dir(&self) -> PathBuf {
        self.state_dir.join(incidents::IncidentsConfig::DIR_NAME)
    }

    /// Reads a file; [`Config::check`] validates it. A configuration that runs commands must be in a
    /// file that other users cannot change.
    ///
    /// # Errors
    /// The file cannot be read, is not valid, or is not safe.
    pub fn read(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read the configuration {}", path.display());
        // Read the same file that was checked.
        let (file, refusal) = match trusted_path::file(path) {
            Ok(file) => (file, None),
            Err(refusal) => (File::open(path).with_context(cannot)?, Some(refusal)),
        };
        let text = String::from_utf8(secret::contents(file, path)?).with_context(cannot)?;
        // The TOML error has line, column and the expected value.
        let config: Self =
            toml::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        match refusal.filter(|_| config.alerts.has_commands()) {
            None => Ok(config),
            Some(Refusal::Foreign(reason) | Refusal::Exposed(reason)) => {
                bail!("configuration with commands: {reason}")
            }
            // A pipe, for example.
            Some(Refusal::Failed(error)) => {
                Err(error).context("configuration with commands must be in a file")
            }
        }
    }

    /// Returns all problems of the configuration, each with advice.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
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
        self.kubernetes.check(&mut errors);
        self.exporters.check(&mut errors);
        errors
    }

    /// Checks the state directory, and creates what is missing, private to the agent's user.
    /// Directories that other users control are refused; failures to create one are reported when it
    /// is needed.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn make_state(&self) -> Result<()> {
        self.state().map_err(|(_, reason)| anyhow!(reason))?;
        match self.incidents.enabled {
            true => self.trust_state(true).map_err(|(_, reason)| anyhow!(reason)),
            false => Ok(()),
        }
    }

    fn state(&self) -> Result<(), (ErrorKind, String)> {
        let state = &self.state_dir;
        if !self.incidents.enabled || !state.is_absolute() {
            return Ok(());
        }
        let describe = |(kind, reason)| {
            (kind, format!("state_dir: {reason}; set another with state_dir or --state-dir"))
        };
        self.trust_state(false).map_err(describe)?;
        directory::writable(state).map_err(describe)
    }

    fn trust_state(&self, create: bool) -> Result<(), (ErrorKind, String)> {
        let state = &self.state_dir;
        let checked = trusted_path::directory(state, create).and_then(|is_private| {
            let dir_name = incidents::IncidentsConfig::DIR_NAME;
            if is_private { trusted_path::subdirectory(state, dir_name, create) } else { Ok(false) }
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
    fn config_without_end_is_rejected() {
        let error = Config::read(Path::new("/dev/zero")).unwrap_err();
        assert!(format!("{error:#}").starts_with("/dev/zero: larger than 4 MiB; "), "{error:#}");
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
