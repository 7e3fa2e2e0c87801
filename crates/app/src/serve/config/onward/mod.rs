//! `[exporters]`: where metrics, profiles and tables are sent; nowhere by default.

mod folder;
mod receiver;

pub(crate) use folder::Keep;
pub(crate) use receiver::Receiver;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use engine::units::Bytes;
use serde::Deserialize;

use super::{Size, Span};
use receiver::receivers;

/// See the module.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Onward {
    /// Folders of files and libraries of programs are told, not only names.
    pub(crate) show_paths: bool,
    /// Metrics, to a collector of OpenTelemetry.
    pub(crate) otlp: Option<Otlp>,
    /// Profiles, to Pyroscope.
    pub(crate) pyroscope: Option<Pyroscope>,
    /// Profiles, as files.
    pub(crate) profiles: Option<Profiles>,
    /// Tables, as files.
    pub(crate) parquet: Option<Parquet>,
}

receivers! {
    /// `[exporters.otlp]`.
    Otlp(endpoint, |_| None) {
        /// The collector; `/v1/metrics` is added.
        pub(crate) endpoint: String,
        /// Between two deliveries.
        #[serde(default = "quarter_minute")]
        pub(crate) interval: Span,
        /// Whether it is compressed.
        #[serde(default = "yes")]
        pub(crate) gzip: bool,
        /// More attributes of the resource, and others in the place of ours.
        #[serde(default)]
        pub(crate) resource_attributes: BTreeMap<String, String>,
    }

    /// `[exporters.pyroscope]`.
    Pyroscope(url, |settings| settings.tenant.as_deref()) {
        /// The server; `/ingest` is added.
        pub(crate) url: String,
        /// What the program is called there.
        #[serde(default = "own_name")]
        pub(crate) application_name: String,
        /// More labels.
        #[serde(default)]
        pub(crate) labels: BTreeMap<String, String>,
        /// Between two profiles.
        #[serde(default = "minute")]
        pub(crate) interval: Span,
        /// The tenant, where there are several.
        pub(crate) tenant: Option<String>,
    }
}

/// `[exporters.profiles]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profiles {
    /// Where the files go.
    pub(crate) dir: PathBuf,
    /// Between two profiles.
    #[serde(default = "minute")]
    pub(crate) interval: Span,
    /// How old they become.
    #[serde(default = "week")]
    pub(crate) retention: Span,
    /// How big they become together.
    #[serde(default = "gigabyte")]
    pub(crate) retention_size: Size,
}

/// `[exporters.parquet]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parquet {
    /// Where the tables go.
    pub(crate) dir: PathBuf,
    /// Between two rows of a thing.
    #[serde(default = "quarter_minute")]
    pub(crate) interval: Span,
    /// How long a file is written to.
    #[serde(default = "ten_minutes")]
    pub(crate) rotate_interval: Span,
    /// How big a file becomes.
    #[serde(default = "sixty_four_megabytes")]
    pub(crate) rotate_size: Size,
    /// How old files become.
    #[serde(default = "week")]
    pub(crate) retention: Span,
    /// How big they become together.
    #[serde(default = "gigabyte")]
    pub(crate) retention_size: Size,
}

impl Onward {
    /// What is wrong with it.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        if let Some(otlp) = &self.otlp {
            let mut wrong = Section::new("exporters.otlp", wrong);
            wrong.needs(cfg!(feature = "otlp"), "otlp");
            wrong.interval(otlp.interval);
            wrong.receiver(&otlp.receiver());
            if otlp.resource_attributes.keys().any(String::is_empty) {
                wrong.push("a key of `resource_attributes` is empty".into());
            }
        }
        if let Some(pyroscope) = &self.pyroscope {
            let mut wrong = Section::new("exporters.pyroscope", wrong);
            wrong.interval(pyroscope.interval);
            wrong.receiver(&pyroscope.receiver());
            if pyroscope.application_name.is_empty() {
                wrong.push("`application_name` is empty; omit it or set one".into());
            }
        }
        if let Some(profiles) = &self.profiles {
            let mut wrong = Section::new("exporters.profiles", wrong);
            wrong.interval(profiles.interval);
            wrong.keep(&profiles.keep());
        }
        if let Some(parquet) = &self.parquet {
            let mut wrong = Section::new("exporters.parquet", wrong);
            wrong.needs(cfg!(feature = "parquet"), "parquet");
            wrong.interval(parquet.interval);
            wrong.keep(&parquet.keep());
            if parquet.rotate_interval.0 < parquet.interval.0 || parquet.rotate_interval.0 > LONGEST
            {
                wrong.push("`rotate_interval` must be between `interval` and 1d".into());
            }
            if parquet.rotate_size.0 < Bytes(1 << 16) {
                wrong.push("`rotate_size` must be 64K or more".into());
            }
        }
    }
}

impl Profiles {
    /// What is kept, and where.
    pub(crate) fn keep(&self) -> Keep<'_> {
        Keep { folder: &self.dir, age: self.retention.0, size: self.retention_size.0 }
    }
}

impl Parquet {
    /// What is kept, and where.
    pub(crate) fn keep(&self) -> Keep<'_> {
        Keep { folder: &self.dir, age: self.retention.0, size: self.retention_size.0 }
    }
}

/// The longest time between two deliveries.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Collects what is wrong, with the name of the section before it.
struct Section<'a> {
    name: &'static str,
    wrong: &'a mut Vec<String>,
}

impl<'a> Section<'a> {
    const fn new(name: &'static str, wrong: &'a mut Vec<String>) -> Self {
        Self { name, wrong }
    }

    fn push(&mut self, what: String) {
        self.wrong.push(format!("[{}] {what}", self.name));
    }

    fn needs(&mut self, is_there: bool, feature: &str) {
        if !is_there {
            self.push(format!("this binary was built without the feature `{feature}`"));
        }
    }

    fn interval(&mut self, interval: Span) {
        if !(Duration::from_secs(1)..=LONGEST).contains(&interval.0) {
            self.push("`interval` must be between 1s and 1d".into());
        }
    }

    fn receiver(&mut self, receiver: &Receiver<'_>) {
        for what in receiver.check() {
            self.push(what);
        }
    }

    fn keep(&mut self, keep: &Keep<'_>) {
        for what in keep.check() {
            self.push(what);
        }
    }
}

const fn yes() -> bool {
    true
}

fn own_name() -> String {
    "vramscope".into()
}

const fn ten_seconds() -> Span {
    Span(Duration::from_secs(10))
}

const fn quarter_minute() -> Span {
    Span(Duration::from_secs(15))
}

const fn minute() -> Span {
    Span(Duration::from_secs(60))
}

const fn ten_minutes() -> Span {
    Span(Duration::from_secs(600))
}

const fn week() -> Span {
    Span(Duration::from_secs(7 * 86_400))
}

const fn sixty_four_megabytes() -> Size {
    Size(Bytes(64 << 20))
}

const fn gigabyte() -> Size {
    Size(Bytes(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        let config: super::super::Config = toml::from_str(text).unwrap();
        config.check()
    }

    #[test]
    fn nothing_is_sent_unless_it_is_asked_for() {
        let config: super::super::Config = toml::from_str("").unwrap();
        let Onward { show_paths, otlp, pyroscope, profiles, parquet } = config.exporters;
        assert!(otlp.is_none() && pyroscope.is_none() && profiles.is_none() && parquet.is_none());
        assert!(!show_paths);
    }

    #[test]
    fn what_all_receivers_have_is_known_and_what_none_has_is_an_error_with_its_line() {
        let parse = |text: &str| toml::from_str::<super::super::Config>(text);
        let (otlp, pyroscope) =
            ("[exporters.otlp]\nendpoint = \"x\"\n", "[exporters.pyroscope]\nurl = \"x\"\n");
        for section in [otlp, pyroscope] {
            let all = "timeout = \"1s\"\nmax_retry_time = \"2s\"\ntoken_file = \"t\"\nusername = \"u\"\n\
                       password_file = \"p\"\nca_file = \"c\"\n";
            let config = parse(&format!("{section}{all}")).unwrap().exporters;
            let receivers = [
                config.otlp.as_ref().map(Otlp::receiver),
                config.pyroscope.as_ref().map(Pyroscope::receiver),
            ];
            let receiver = receivers.into_iter().flatten().next().unwrap();
            let spans = (receiver.timeout.as_secs(), receiver.retry.as_secs(), receiver.user);
            assert_eq!(spans, (1, 2, Some("u")));
            let files = [receiver.token_file, receiver.password_file, receiver.ca_file];
            assert_eq!(files.map(Option::unwrap), ["t", "p", "c"].map(std::path::Path::new));
        }
        let folder = "dir = \"/x\"\n";
        for (section, wrong) in [
            ("[exporters]\n", "speed = 3"),
            (otlp, "speed = 3"),
            (otlp, "tenant = \"team\""),
            (pyroscope, "gzip = true"),
            (&format!("[exporters.profiles]\n{folder}"), "timeout = \"1s\""),
            (&format!("[exporters.parquet]\n{folder}"), "speed = 3"),
        ] {
            let error = parse(&format!("{section}{wrong}")).unwrap_err().to_string();
            let name = wrong.split(' ').next().unwrap();
            let line = format!("line {}", section.lines().count() + 1);
            assert!(error.contains(&format!("unknown field `{name}`")), "{error}");
            assert!(error.contains(&line), "{error}");
        }
        let error = parse(&format!("{otlp}timeout = \"soon\"")).unwrap_err().to_string();
        assert!(error.contains("line 3"), "{error}");
    }

    #[test]
    fn urls_that_lead_nowhere_are_told() {
        for (url, word) in [
            ("collector:4318", "http://"),
            ("ftp://a.example", "http://"),
            ("http://", "http://"),
            ("http://a.example/?x=1", "no `?`"),
            ("http://me:secret%a.example", "password_file"),
        ] {
            let url = url.replace('%', "@");
            let found = wrong(&format!("[exporters.otlp]\nendpoint = \"{url}\""));
            assert!(found.len() == 1 && found[0].contains(word), "{url}: {found:?}");
            assert!(found[0].starts_with("[exporters.otlp] `endpoint`"), "{found:?}");
        }
        assert!(wrong("[exporters.pyroscope]\nurl = \"https://a.example/base\"").is_empty());
    }

    #[test]
    fn a_secret_goes_to_other_hosts_only_with_tls() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "secret\n").unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&token, private).unwrap();
        let found = |url: &str| {
            let token = token.display();
            wrong(&format!("[exporters.otlp]\nendpoint = \"{url}\"\ntoken_file = \"{token}\""))
        };
        assert!(found("https://a.example").is_empty());
        assert!(found("http://127.0.0.1:4318").is_empty());
        assert!(found(&["http://", "[::1]:4318"].concat()).is_empty());
        assert!(found("http://a.example")[0].contains("use https"));
        std::fs::write(&token, "two\nlines").unwrap();
        assert!(found("https://a.example")[0].contains("token_file"));
    }

    #[test]
    fn folders_that_cannot_be_written_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let found = |path: &std::path::Path| {
            wrong(&format!("[exporters.parquet]\ndir = \"{}\"", path.display()))
        };
        assert!(found(&file)[0].contains("is not a directory"), "{:?}", found(&file));
        assert!(found(&file.join("below"))[0].contains("is not a directory"));
        assert!(found(std::path::Path::new("/proc/nothing"))[0].contains("cannot"));
        assert!(found(std::path::Path::new("relative"))[0].contains("absolute path"));
        assert!(found(&folder.path().join("new/folder")).is_empty());
        assert!(!folder.path().join("new").exists(), "a check makes nothing");
    }

    #[test]
    fn times_and_sizes_have_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let found = wrong(&format!(
            "[exporters.parquet]\ndir = \"{}\"\ninterval = \"10ms\"\nrotate_interval = \"2d\"\nrotate_size = \"1K\"",
            folder.path().display()
        ));
        for word in ["`interval`", "`rotate_interval`", "`rotate_size`"] {
            assert!(found.iter().any(|what| what.contains(word)), "{word}: {found:?}");
        }
    }
}
