//! Checks that the complete example of `docs/reference/config.md` has every key, with the defaults.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::path::Path;

use super::Config;

/// Returns the example from the page. A `#` directly before a key or a section marks one without a
/// default.
fn example() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/config.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, rest) = page.split_once("\n## Complete example\n").expect("its section");
    let (_, rest) = rest.split_once("\n```toml\n").expect("its block");
    rest.split_once("\n```").expect("the end of the block").0.to_owned()
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
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn active_lines_of_the_config_example_are_the_defaults() {
    let (mut found, defaults) = (parse(&example()), Config::default());
    // A threshold may be written out with its default.
    assert_eq!(found.alerts.rules(), defaults.alerts.rules());
    assert_eq!(found.alerts.enabled, defaults.alerts.enabled);
    assert_eq!(found.alerts.keep_firing_for, defaults.alerts.keep_firing_for);
    let receivers = format!("{:#?}", found.alerts.receivers());
    assert_eq!(receivers, format!("{:#?}", defaults.alerts.receivers()));
    found.alerts = defaults.alerts.clone();
    assert_eq!(format!("{found:#?}"), format!("{defaults:#?}"));
}

#[test]
fn other_lines_of_the_config_example_parse() {
    let found = parse(&uncommented());
    assert!(found.http.token_file.is_some() && found.trace.max_cpu.is_some());
    assert!(found.exporters.otlp.is_some() && found.exporters.parquet.is_some());
    assert_eq!((found.alerts.receivers().len(), found.actions.allow.len()), (3, 1));
}

/// Returns the keys of a section, as the error about an unknown one lists them.
fn keys(section: &str) -> Vec<String> {
    let error = toml::from_str::<Config>(&format!("{section}\nno_such_key = 1\n")).unwrap_err();
    let (_, list) = error.message().split_once("expected ").expect("a list of keys");
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the words of a section of the example, including the sections below it.
fn example_words(section: &str) -> Vec<String> {
    let name = section.trim_matches(['[', ']']);
    let mut is_inside = name.is_empty();
    let mut words = Vec::new();
    for line in uncommented().lines() {
        if line.starts_with('[') {
            let own = line.split(']').next().unwrap().trim_start_matches('[');
            let rest = own.strip_prefix(name);
            is_inside = name.is_empty()
                || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        }
        if is_inside {
            let fields = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.extend(fields.map(str::to_owned));
        }
    }
    words
}

#[test]
fn config_example_has_every_key() {
    for section in [
        "",
        "[http]",
        "[trace]",
        "[metrics]",
        "[alerts]",
        "[[alerts.rule]]",
        "[[alerts.receiver]]",
        "[incidents]",
        "[actions]",
        "[[actions.allow]]",
        "[kubernetes]",
        "[exporters]",
        "[exporters.otlp]",
        "[exporters.pyroscope]",
        "[exporters.profiles]",
        "[exporters.parquet]",
    ] {
        let (keys, words) = (keys(section), example_words(section));
        assert!(keys.len() > 2, "{section}: {keys:?}");
        for key in keys {
            assert!(words.contains(&key), "docs/reference/config.md: {section} has no {key}");
        }
    }
}
