//! The complete example of `docs/reference/config.md`, generated from the sections.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::fmt::Write;
use std::path::Path;

use super::alerts::{AlertsConfig, ReceiverConfig};
use super::exporters::{ExportersConfig, OtlpConfig, ParquetConfig};
use super::http::HttpConfig;
use super::incidents::IncidentsConfig;
use super::kubernetes::KubernetesConfig;
use super::log::LogConfig;
use super::section::Key;
use super::trace::TraceConfig;
use super::{Config, MetricsConfig};

/// Sections in the order of the page: description, header and keys. Optional ones are comments.
fn sections() -> [(&'static str, &'static str, &'static [Key]); 12] {
    [
        (Config::ABOUT, "", Config::KEYS),
        (LogConfig::ABOUT, "[log]", LogConfig::KEYS),
        (HttpConfig::ABOUT, "[http]", HttpConfig::KEYS),
        (TraceConfig::ABOUT, "[trace]", TraceConfig::KEYS),
        (MetricsConfig::ABOUT, "[metrics]", MetricsConfig::KEYS),
        (AlertsConfig::ABOUT, "[alerts]", AlertsConfig::KEYS),
        (ReceiverConfig::ABOUT, "#[[alerts.receiver]]", ReceiverConfig::KEYS),
        (IncidentsConfig::ABOUT, "[incidents]", IncidentsConfig::KEYS),
        (KubernetesConfig::ABOUT, "[kubernetes]", KubernetesConfig::KEYS),
        (ExportersConfig::ABOUT, "[exporters]", ExportersConfig::KEYS),
        (OtlpConfig::ABOUT, "#[exporters.otlp]", OtlpConfig::KEYS),
        (ParquetConfig::ABOUT, "#[exporters.parquet]", ParquetConfig::KEYS),
    ]
}

/// Returns the example. A `#` directly before a key or a section marks one without a default.
fn example() -> String {
    let mut text = String::new();
    for (about, header, keys) in sections() {
        if !header.is_empty() {
            text.push('\n');
            about.lines().for_each(|line| writeln!(text, "#{line}").unwrap());
            writeln!(text, "{header}").unwrap();
        }
        for key in keys.iter().filter(|key| !key.value.is_empty()) {
            key.about.iter().for_each(|line| writeln!(text, "#{line}").unwrap());
            let mark = if key.is_default && !header.starts_with('#') { "" } else { "#" };
            writeln!(text, "{mark}{} = {}", key.name, key.value).unwrap();
        }
    }
    text
}

/// Returns the example with every line active.
fn uncommented() -> String {
    let is_start = |c: char| c.is_ascii_lowercase() || c == '[';
    let active = |line| match str::strip_prefix(line, "#") {
        Some(rest) if rest.starts_with(is_start) => rest,
        _ => line,
    };
    example().lines().map(active).collect::<Vec<_>>().join("\n")
}

fn parse(text: &str) -> Config {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn config_page_has_the_generated_example() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/config.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("\n## All keys\n").expect("its section");
    let (intro, rest) = rest.split_once("\n```toml\n").expect("its block");
    let (_, after) = rest.split_once("\n```\n").expect("the end of the block");
    let expected = format!("{before}\n## All keys\n{intro}\n```toml\n{}```\n{after}", example());
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page == expected, "docs/reference/config.md is out of date: set VRAMSCOPE_UPDATE=1");
}

#[test]
fn active_lines_of_the_config_example_are_the_defaults() {
    assert_eq!(format!("{:#?}", parse(&example())), format!("{:#?}", Config::default()));
}

#[test]
fn defaults_of_optional_sections_are_in_the_config_example() {
    let found = parse(&uncommented());
    assert!(found.http.token_file.is_some() && found.trace.max_cpu.is_some());
    let [receiver] = &found.alerts.receiver[..] else { panic!("{:?}", found.alerts) };
    let default = ReceiverConfig::default();
    assert_eq!(
        (receiver.kind, receiver.rate_limit, receiver.rate_limit_window, receiver.repeat_interval),
        (default.kind, default.rate_limit, default.rate_limit_window, default.repeat_interval)
    );
    let (otlp, default) = (found.exporters.otlp.unwrap(), OtlpConfig::default());
    assert_eq!(
        (otlp.interval, otlp.gzip, otlp.timeout, otlp.max_retry_time),
        (default.interval, default.gzip, default.timeout, default.max_retry_time)
    );
    let (parquet, default) = (found.exporters.parquet.unwrap(), ParquetConfig::default());
    let default = ParquetConfig { dir: parquet.dir.clone(), ..default };
    assert_eq!(format!("{parquet:?}"), format!("{default:?}"));
}
