//! `[exporters]`: destinations of metrics, profiles and tables; none by default.

mod endpoint;
mod retention;

pub(crate) use endpoint::HttpEndpoint;
pub(crate) use retention::Retention;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use engine::model::units::Bytes;
use serde::Deserialize;

use super::{ByteSize, DurationValue};
use endpoint::receivers;

/// `[exporters]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ExportersConfig {
    /// Export full paths of files and libraries, not only names.
    pub(crate) show_paths: bool,
    /// Metrics to an OpenTelemetry collector.
    pub(crate) otlp: Option<Otlp>,
    /// Profiles to Pyroscope.
    pub(crate) pyroscope: Option<Pyroscope>,
    /// Profiles as files.
    pub(crate) profiles: Option<ProfilesConfig>,
    /// Tables as Parquet files.
    pub(crate) parquet: Option<ParquetConfig>,
}

receivers! {
    /// `[exporters.otlp]`.
    Otlp(endpoint, |_| None) {
        /// Endpoint of the collector; `/v1/metrics` is appended.
        pub(crate) endpoint: String,
        /// Time between two exports.
        #[serde(default = "quarter_minute")]
        pub(crate) interval: DurationValue,
        /// Compress requests.
        #[serde(default = "yes")]
        pub(crate) gzip: bool,
        /// Additional resource attributes, which override those of the agent.
        #[serde(default)]
        pub(crate) resource_attributes: BTreeMap<String, String>,
    }

    /// `[exporters.pyroscope]`.
    Pyroscope(url, |config| config.tenant.as_deref()) {
        /// Server URL; `/ingest` is appended.
        pub(crate) url: String,
        /// Application name at the server.
        #[serde(default = "own_name")]
        pub(crate) application_name: String,
        /// Additional labels.
        #[serde(default)]
        pub(crate) labels: BTreeMap<String, String>,
        /// Time between two profiles.
        #[serde(default = "minute")]
        pub(crate) interval: DurationValue,
        /// Tenant id, for multi-tenant servers.
        pub(crate) tenant: Option<String>,
    }
}

/// `[exporters.profiles]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProfilesConfig {
    /// Output directory.
    pub(crate) dir: PathBuf,
    /// Time between two profiles.
    #[serde(default = "minute")]
    pub(crate) interval: DurationValue,
    /// Maximum age of files.
    #[serde(default = "week")]
    pub(crate) retention: DurationValue,
    /// Maximum total size.
    #[serde(default = "gigabyte")]
    pub(crate) retention_size: ByteSize,
}

/// `[exporters.parquet]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ParquetConfig {
    /// Output directory.
    pub(crate) dir: PathBuf,
    /// Time between two rows of the same object.
    #[serde(default = "quarter_minute")]
    pub(crate) interval: DurationValue,
    /// Maximum time span of a file.
    #[serde(default = "ten_minutes")]
    pub(crate) rotate_interval: DurationValue,
    /// Maximum size of a file.
    #[serde(default = "sixty_four_megabytes")]
    pub(crate) rotate_size: ByteSize,
    /// Maximum age of files.
    #[serde(default = "week")]
    pub(crate) retention: DurationValue,
    /// Maximum total size.
    #[serde(default = "gigabyte")]
    pub(crate) retention_size: ByteSize,
}

impl ExportersConfig {
    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        if let Some(otlp) = &self.otlp {
            let mut errors = SectionErrors::new("exporters.otlp", errors);
            errors.needs(cfg!(feature = "otlp"), "otlp");
            errors.interval(otlp.interval);
            errors.endpoint(&otlp.http_endpoint());
            if otlp.resource_attributes.keys().any(String::is_empty) {
                errors.push("a key of `resource_attributes` is empty".into());
            }
        }
        if let Some(pyroscope) = &self.pyroscope {
            let mut errors = SectionErrors::new("exporters.pyroscope", errors);
            errors.interval(pyroscope.interval);
            errors.endpoint(&pyroscope.http_endpoint());
            if pyroscope.application_name.is_empty() {
                errors.push("`application_name` is empty; omit it or set one".into());
            }
        }
        if let Some(profiles) = &self.profiles {
            let mut errors = SectionErrors::new("exporters.profiles", errors);
            errors.interval(profiles.interval);
            errors.retention(&profiles.retention_rule());
        }
        if let Some(parquet) = &self.parquet {
            let mut errors = SectionErrors::new("exporters.parquet", errors);
            errors.needs(cfg!(feature = "parquet"), "parquet");
            errors.interval(parquet.interval);
            errors.retention(&parquet.retention_rule());
            if parquet.rotate_interval.0 < parquet.interval.0
                || parquet.rotate_interval.0 > MAX_INTERVAL
            {
                errors.push("`rotate_interval` must be between `interval` and 1d".into());
            }
            if parquet.rotate_size.0 < Bytes(1 << 16) {
                errors.push("`rotate_size` must be 64K or more".into());
            }
        }
    }
}

impl ProfilesConfig {
    /// Returns the directory and its retention.
    pub(crate) fn retention_rule(&self) -> Retention<'_> {
        Retention { dir: &self.dir, age: self.retention.0, size: self.retention_size.0 }
    }
}

impl ParquetConfig {
    /// Returns the directory and its retention.
    pub(crate) fn retention_rule(&self) -> Retention<'_> {
        Retention { dir: &self.dir, age: self.retention.0, size: self.retention_size.0 }
    }
}

/// Maximum time between two exports.
const MAX_INTERVAL: Duration = Duration::from_secs(86_400);

/// Collects problems, prefixed with the name of the section.
struct SectionErrors<'a> {
    name: &'static str,
    errors: &'a mut Vec<String>,
}

impl<'a> SectionErrors<'a> {
    const fn new(name: &'static str, errors: &'a mut Vec<String>) -> Self {
        Self { name, errors }
    }

    fn push(&mut self, problem: String) {
        self.errors.push(format!("[{}] {problem}", self.name));
    }

    fn needs(&mut self, is_built_in: bool, feature: &str) {
        if !is_built_in {
            self.push(format!("this binary was built without the feature `{feature}`"));
        }
    }

    fn interval(&mut self, interval: DurationValue) {
        if !(Duration::from_secs(1)..=MAX_INTERVAL).contains(&interval.0) {
            self.push("`interval` must be between 1s and 1d".into());
        }
    }

    fn endpoint(&mut self, endpoint: &HttpEndpoint<'_>) {
        for problem in endpoint.check() {
            self.push(problem);
        }
    }

    fn retention(&mut self, retention: &Retention<'_>) {
        for problem in retention.check() {
            self.push(problem);
        }
    }
}

const fn yes() -> bool {
    true
}

fn own_name() -> String {
    "vramscope".into()
}

const fn ten_seconds() -> DurationValue {
    DurationValue(Duration::from_secs(10))
}

const fn quarter_minute() -> DurationValue {
    DurationValue(Duration::from_secs(15))
}

const fn minute() -> DurationValue {
    DurationValue(Duration::from_secs(60))
}

const fn ten_minutes() -> DurationValue {
    DurationValue(Duration::from_secs(600))
}

const fn week() -> DurationValue {
    DurationValue(Duration::from_secs(7 * 86_400))
}

const fn sixty_four_megabytes() -> ByteSize {
    ByteSize(Bytes(64 << 20))
}

const fn gigabyte() -> ByteSize {
    ByteSize(Bytes(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let config: super::super::Config = toml::from_str(text).unwrap();
        config.check()
    }

    #[test]
    fn exporters_are_off_by_default() {
        let config: super::super::Config = toml::from_str("").unwrap();
        let ExportersConfig { show_paths, otlp, pyroscope, profiles, parquet } = config.exporters;
        assert!(otlp.is_none() && pyroscope.is_none() && profiles.is_none() && parquet.is_none());
        assert!(!show_paths);
    }

    #[test]
    fn shared_keys_parse_and_unknown_keys_have_their_line() {
        let parse = |text: &str| toml::from_str::<super::super::Config>(text);
        let (otlp, pyroscope) =
            ("[exporters.otlp]\nendpoint = \"x\"\n", "[exporters.pyroscope]\nurl = \"x\"\n");
        for section in [otlp, pyroscope] {
            let all = "timeout = \"1s\"\nmax_retry_time = \"2s\"\ntoken_file = \"t\"\nusername = \"u\"\n\
                       password_file = \"p\"\nca_file = \"c\"\n";
            let config = parse(&format!("{section}{all}")).unwrap().exporters;
            let endpoints = [
                config.otlp.as_ref().map(Otlp::http_endpoint),
                config.pyroscope.as_ref().map(Pyroscope::http_endpoint),
            ];
            let endpoint = endpoints.into_iter().flatten().next().unwrap();
            let options = (endpoint.timeout.as_secs(), endpoint.retry.as_secs(), endpoint.user);
            assert_eq!(options, (1, 2, Some("u")));
            let files = [endpoint.token_file, endpoint.password_file, endpoint.ca_file];
            assert_eq!(files.map(Option::unwrap), ["t", "p", "c"].map(std::path::Path::new));
        }
        let dir = "dir = \"/x\"\n";
        for (section, errors) in [
            ("[exporters]\n", "speed = 3"),
            (otlp, "speed = 3"),
            (otlp, "tenant = \"team\""),
            (pyroscope, "gzip = true"),
            (&format!("[exporters.profiles]\n{dir}"), "timeout = \"1s\""),
            (&format!("[exporters.parquet]\n{dir}"), "speed = 3"),
        ] {
            let error = parse(&format!("{section}{errors}")).unwrap_err().to_string();
            let name = errors.split(' ').next().unwrap();
            let line = format!("line {}", section.lines().count() + 1);
            assert!(error.contains(&format!("unknown field `{name}`")), "{error}");
            assert!(error.contains(&line), "{error}");
        }
        let error = parse(&format!("{otlp}timeout = \"soon\"")).unwrap_err().to_string();
        assert!(error.contains("line 3"), "{error}");
    }

    #[test]
    fn invalid_urls_are_reported() {
        for (url, word) in [
            ("collector:4318", "http://"),
            ("ftp://a.example", "http://"),
            ("http://", "http://"),
            ("http://a.example/?x=1", "no `?`"),
            ("http://me:secret%a.example", "password_file"),
        ] {
            let url = url.replace('%', "@");
            let found = errors(&format!("[exporters.otlp]\nendpoint = \"{url}\""));
            assert!(found.len() == 1 && found[0].contains(word), "{url}: {found:?}");
            assert!(found[0].starts_with("[exporters.otlp] `endpoint`"), "{found:?}");
        }
        assert!(errors("[exporters.pyroscope]\nurl = \"https://a.example/base\"").is_empty());
    }

    #[test]
    fn secrets_require_tls_to_other_hosts() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "secret\n").unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&token, private).unwrap();
        let found = |url: &str| {
            let token = token.display();
            errors(&format!("[exporters.otlp]\nendpoint = \"{url}\"\ntoken_file = \"{token}\""))
        };
        assert!(found("https://a.example").is_empty());
        assert!(found("http://127.0.0.1:4318").is_empty());
        assert!(found(&["http://", "[::1]:4318"].concat()).is_empty());
        assert!(found("http://a.example")[0].contains("use https"));
        std::fs::write(&token, "two\nlines").unwrap();
        assert!(found("https://a.example")[0].contains("token_file"));
    }

    #[test]
    fn unwritable_directories_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let found = |path: &std::path::Path| {
            errors(&format!("[exporters.parquet]\ndir = \"{}\"", path.display()))
        };
        assert!(found(&file)[0].contains("is not a directory"), "{:?}", found(&file));
        assert!(found(&file.join("below"))[0].contains("is not a directory"));
        assert!(found(std::path::Path::new("/proc/nothing"))[0].contains("cannot"));
        assert!(found(std::path::Path::new("relative"))[0].contains("absolute path"));
        assert!(found(&dir.path().join("new/dir")).is_empty());
        assert!(!dir.path().join("new").exists(), "a check creates nothing");
    }

    #[test]
    fn durations_and_sizes_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let found = errors(&format!(
            "[exporters.parquet]\ndir = \"{}\"\ninterval = \"10ms\"\nrotate_interval = \"2d\"\nrotate_size = \"1K\"",
            dir.path().display()
        ));
        for word in ["`interval`", "`rotate_interval`", "`rotate_size`"] {
            assert!(found.iter().any(|problem| problem.contains(word)), "{word}: {found:?}");
        }
    }
}
