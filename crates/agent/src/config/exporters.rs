//! `[exporters]`: destinations of metrics and tables; none by default.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::endpoint::{AuthScheme, Credentials, HttpEndpoint};
use super::section::section;
use super::{ByteSize, DurationValue, directory, problems};

section! {
    /// Where data goes: exporters.md. An exporter is off unless its section exists.
    ExportersConfig {
        /// Export whole paths of source files and libraries, not only the last part.
        show_paths: bool = false, default "false";
        /// Metrics for an OpenTelemetry collector.
        otlp: Option<OtlpConfig> = None, section "";
        /// Tables as Parquet files.
        parquet: Option<ParquetConfig> = None, section "";
    }
}

section! {
    /// Metrics for an OpenTelemetry collector, over OTLP/HTTP.
    OtlpConfig {
        /// URL of the collector; `/v1/metrics` is appended. Required.
        endpoint: String = String::new(), example "\"http://127.0.0.1:4318\"";
        /// Time between two exports, 1s to 1d.
        interval: DurationValue = DurationValue::secs(15), default "\"15s\"";
        /// Compress requests.
        gzip: bool = true, default "true";
        /// More resource attributes; they override the agent's own.
        resource_attributes: BTreeMap<String, String> = BTreeMap::new(), example "{ \"deployment.environment.name\" = \"lab\" }";
        /// Limit of one attempt, at most 1m.
        timeout: DurationValue = DurationValue::secs(10), default "\"10s\"";
        /// How long one export is retried, at most 1h. One newer export waits meanwhile; more are
        /// dropped.
        max_retry_time: DurationValue = DurationValue::secs(60), default "\"1m\"";
        /// Secret file with a bearer token.
        token_file: Option<PathBuf> = None, example "\"/etc/vramscope/otlp-token\"";
        /// User name, instead of `token_file`. Requires `password_file`.
        username: Option<String> = None, example "\"vramscope\"";
        /// Secret file with the password.
        password_file: Option<PathBuf> = None, example "\"/etc/vramscope/otlp-password\"";
        /// Certificates to trust instead of the system's, in PEM.
        ca_file: Option<PathBuf> = None, example "\"/etc/vramscope/otlp-ca.pem\"";
    }
}

section! {
    /// Tables as Parquet files, for databases.
    ParquetConfig {
        /// Output directory, an absolute path. Required.
        dir: PathBuf = PathBuf::new(), example "\"/var/lib/vramscope/lake\"";
        /// Time between two rows of the same object, 1s to 1d.
        interval: DurationValue = DurationValue::secs(15), default "\"15s\"";
        /// Start a new file after this time, between `interval` and 1d.
        rotate_interval: DurationValue = DurationValue::secs(600), default "\"10m\"";
        /// Start a new file at this size, at least 64K.
        rotate_size: ByteSize = ByteSize::mib(64), default "\"64M\"";
        /// Remove older files; at least 1m.
        retention: DurationValue = DurationValue::secs(7 * 86_400), default "\"7d\"";
        /// Maximum size of all files, at least 1M.
        retention_size: ByteSize = ByteSize::mib(1024), default "\"1G\"";
    }
}

/// Maximum time between two exports.
const MAX_INTERVAL: DurationValue = DurationValue::secs(86_400);

impl ExportersConfig {
    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        let sections = [
            ("otlp", self.otlp.as_ref().map(OtlpConfig::problems)),
            ("parquet", self.parquet.as_ref().map(ParquetConfig::problems)),
        ];
        for (name, problems) in sections {
            let problems = problems.unwrap_or_default();
            errors.extend(problems.iter().map(|problem| format!("[exporters.{name}] {problem}")));
        }
    }
}

fn is_interval(interval: DurationValue) -> bool {
    (DurationValue::secs(1)..=MAX_INTERVAL).contains(&interval)
}

impl OtlpConfig {
    /// Returns the collector.
    pub(crate) fn http_endpoint(&self) -> HttpEndpoint {
        let basic = self.username.as_ref().zip(self.password_file.as_ref());
        let basic = basic.map(|(user, file)| Credentials {
            file: file.clone(),
            scheme: AuthScheme::Basic(user.clone()),
        });
        HttpEndpoint {
            key: "endpoint",
            url: format!("{}/v1/metrics", self.endpoint.trim_end_matches('/')),
            timeout: self.timeout.0,
            credentials: Credentials::bearer(self.token_file.as_deref()).or(basic),
            ca_file: self.ca_file.clone(),
            ..HttpEndpoint::default()
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut found = self.http_endpoint().check();
        found.extend(problems([
            (is_interval(self.interval), "`interval` must be between 1s and 1d"),
            (
                self.max_retry_time.0 <= Duration::from_hours(1),
                "`max_retry_time` must be at most 1h",
            ),
            (!self.endpoint.contains('?'), "`endpoint` must have no `?`: the path is appended"),
            (
                self.username.is_some() == self.password_file.is_some(),
                "`username` requires `password_file`, and vice versa",
            ),
            (
                self.username.is_none() || self.token_file.is_none(),
                "set either `token_file`, or `username` and `password_file`",
            ),
            (
                !self.resource_attributes.keys().any(String::is_empty),
                "a key of `resource_attributes` is empty",
            ),
        ]));
        found
    }
}

impl ParquetConfig {
    /// Returns its problems. Nothing is created, except for a file that is removed at once.
    fn problems(&self) -> Vec<String> {
        let rotation = self.interval..=MAX_INTERVAL;
        let mut found: Vec<String> = problems([
            (is_interval(self.interval), "`interval` must be between 1s and 1d"),
            (
                rotation.contains(&self.rotate_interval),
                "`rotate_interval` must be between `interval` and 1d",
            ),
            (self.rotate_size.0.0 >= 1 << 16, "`rotate_size` must be 64K or more"),
            (self.retention >= DurationValue::secs(60), "`retention` must be 1m or more"),
            (self.retention_size >= ByteSize::mib(1), "`retention_size` must be 1M or more"),
            (
                self.dir.is_absolute(),
                "`dir` must be an absolute path, such as /var/lib/vramscope/lake",
            ),
        ])
        .collect();
        if self.dir.is_absolute() {
            let reason = directory::writable(&self.dir).err();
            found.extend(reason.map(|(_, reason)| format!("{reason}; choose another `dir`")));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn errors(text: &str) -> Vec<String> {
        toml::from_str::<Config>(text).unwrap().check()
    }

    #[test]
    fn exporters_are_off_by_default() {
        let config = Config::default().exporters;
        assert!(config.otlp.is_none() && config.parquet.is_none() && !config.show_paths);
    }

    #[test]
    fn unknown_keys_have_their_line() {
        for (section, key) in [
            ("[exporters]\n", "speed = 3"),
            ("[exporters.otlp]\nendpoint = \"x\"\n", "speed = 3"),
            ("[exporters.parquet]\ndir = \"/x\"\n", "timeout = \"1s\""),
        ] {
            let text = format!("{section}{key}");
            let error = toml::from_str::<Config>(&text).unwrap_err().to_string();
            let name = key.split(' ').next().unwrap();
            let line = format!("line {}", section.lines().count() + 1);
            assert!(error.contains(&format!("unknown field `{name}`")), "{error}");
            assert!(error.contains(&line), "{error}");
        }
    }

    #[test]
    fn invalid_urls_are_reported() {
        for (url, word) in [
            ("collector:4318", "`endpoint`"),
            ("ftp://a.example", "`endpoint`"),
            ("http://", "`endpoint`"),
            ("", "`endpoint`"),
            ("http://a.example/?x=1", "no `?`"),
            ("http://me:secret%a.example", "the password in `endpoint`"),
        ] {
            let url = url.replace('%', "@");
            let found = errors(&format!("[exporters.otlp]\nendpoint = \"{url}\""));
            assert!(found.len() == 1 && found[0].contains(word), "{url}: {found:?}");
            assert!(found[0].starts_with("[exporters.otlp] "), "{found:?}");
        }
        assert!(errors("[exporters.otlp]\nendpoint = \"https://a.example/base\"").is_empty());
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
        assert!(found("https://a.example")[0].contains("one line"));
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
            "[exporters.parquet]\ndir = \"{}\"\ninterval = \"10ms\"\nrotate_interval = \"2d\"\n\
             rotate_size = \"1K\"",
            dir.path().display()
        ));
        for word in ["`interval`", "`rotate_interval`", "`rotate_size`"] {
            assert!(found.iter().any(|problem| problem.contains(word)), "{word}: {found:?}");
        }
    }
}
