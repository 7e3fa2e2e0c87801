#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;
use engine::alert::{Severity, Threshold};

fn read(text: &str) -> AlertsConfig {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    read(text).check(&mut errors);
    errors
}

/// Returns the only problem.
fn reason(text: &str) -> String {
    let errors = errors(text);
    let [reason] = &errors[..] else { panic!("{errors:#?}") };
    reason.clone()
}

#[test]
fn defaults_enable_builtin_rules_and_the_log() {
    let alerts = read("");
    assert_eq!(alerts.rules(), builtin::rules(&Thresholds::default()));
    let [receiver] = &alerts.receivers()[..] else { panic!() };
    assert_eq!(receiver.kind, ReceiverType::Log);
    assert_eq!(errors(""), [""; 0]);
}

#[test]
fn thresholds_are_set_and_rules_switched_off() {
    let alerts = read(
        "full_soon = \"2h\"\nnearly_full = 0.9\n\
         disabled_rules = [\"leak_suspect\", \"out_of_memory\", \"untracked_growth\", \"degraded\"]",
    );
    let rules = alerts.rules();
    let names: Vec<_> = rules.iter().map(|rule| rule.name).collect();
    assert_eq!(names, ["full_soon", "nearly_full", "fragmentation", "lost_events", "not_ready"]);
    assert_eq!(rules[0].threshold, Threshold::Below(7200.0));
    assert_eq!(rules[1].threshold, Threshold::Above(0.9));
    assert_eq!(rules[2].threshold, Threshold::Above(0.4));
    assert!(reason("disabled_rules = [\"leaks\"]").contains("unknown rule `leaks`; available:"));
}

#[test]
fn invalid_thresholds_are_rejected_with_an_example() {
    for (text, expected) in [
        ("nearly_full = 95.0", "between 0 and 1, such as 0.95"),
        ("nearly_full = \"95%\"", "expected f64"),
        ("full_soon = 6", "expected a string"),
        ("full_soon = \"6 fortnights\"", "use ms, s, m, h or d"),
        ("untracked_growth = \"1X\"", "use K, M, G or T"),
        ("nearly_ful = 0.9", "unknown field"),
        ("[[receiver]]\ntype = \"mail\"", "unknown variant"),
        ("[[receiver]]\ntype = \"log\"\ncolor = \"red\"", "unknown field"),
    ] {
        let error = toml::from_str::<AlertsConfig>(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn incident_messages_go_only_to_receivers_that_name_them() {
    let accepts = |text: &str, rule: &str| {
        read(&format!("[[receiver]]\n{text}")).receivers()[0].accepts(rule, Severity::Critical)
    };
    assert!(accepts("", "leak_suspect") && !accepts("", INCIDENT_RULE));
    assert!(accepts("rules = [\"incident\"]", INCIDENT_RULE));
    assert!(!accepts("rules = [\"incident\"]", "leak_suspect"));
}

#[test]
fn invalid_receivers_are_rejected_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "\n").unwrap();
    for file in [&token, &empty] {
        std::fs::set_permissions(file, Permissions::from_mode(0o640)).unwrap();
    }
    let (token, empty) = (token.display(), empty.display());
    let webhook = "[[receiver]]\ntype = \"webhook\"\n";
    let disguised = ["http://127.0.0.1", "alerts.example/"].join("@");
    let password = ["http://", "me:s3cret", "@alerts.example/"].concat();
    let nowhere = "http://";
    let (log, command) = ("[[receiver]]\ntype = \"log\"\n", "[[receiver]]\ntype = \"command\"\n");
    let local = "url = \"http://127.0.0.1:9/x\"\n";
    let plain = "url = \"http://alerts.example/\"\n";
    for (text, expected) in [
        (webhook.to_owned(), "either `url` or `url_file`"),
        (format!("{webhook}url = \"ftp://a.example\""), "`url` must be a URL"),
        (format!("{webhook}{local}token_file = \"/nowhere/token\""), "cannot read /nowhere/token"),
        (format!("{webhook}{local}token_file = \"{empty}\""), "must hold one line"),
        (
            format!("{webhook}url = \"http://alerts.example/x\"\ntoken_file = \"{token}\""),
            "the secret would be sent unencrypted",
        ),
        (
            format!("{webhook}url = \"{disguised}\"\ntoken_file = \"{token}\""),
            "the secret would be sent unencrypted",
        ),
        (format!("{webhook}url = \"{nowhere}\""), "`url` must be a URL"),
        (format!("{webhook}url = \"https://a.example/a b\\n\""), "`url` must be a URL"),
        (format!("{webhook}url = \"http://a.example:99999/\""), "1 to 65535"),
        (format!("{webhook}url = \"http://a.example:0/\""), "1 to 65535"),
        (format!("{webhook}{local}headers = {{ \"X Y\" = \"a\" }}"), "not a valid header name"),
        (format!("{webhook}{local}headers = {{ X = \"a\\nb\" }}"), "cannot be sent"),
        (
            format!("{webhook}{plain}headers = {{ X-Api-Key = \"s3cret\" }}"),
            "`X-Api-Key` would be sent unencrypted",
        ),
        (format!("{webhook}{plain}headers = {{ Authorization = \"s3cret\" }}"), "use https"),
        (format!("{webhook}url = \"{password}\""), "the password in `url`"),
        (
            format!("{webhook}{local}token_header = \"X-Key\""),
            "`token_header` requires `token_file`",
        ),
        (format!("{webhook}{local}ca_file = \"{token}\""), "holds no certificate"),
        (
            format!("{webhook}{local}command = [\"/bin/true\"]"),
            "`command` applies only to command receivers",
        ),
        (format!("{webhook}{local}max_retry_time = \"2h\""), "at most 1h"),
        (format!("{log}rate_limit = 0"), "must be more than 0"),
        (format!("{log}rules = [\"leaks\"]"), "unknown rule `leaks`; available:"),
        (format!("{log}timeout = \"1s\""), "`timeout` applies only to webhook and command"),
        (command.to_owned(), "no shell is used"),
        (format!("{command}command = [\"logger\"]"), "the absolute path"),
        (format!("{command}command = [\"/no/such\"]"), "no program /no/such"),
        (format!("{command}command = [\"/etc/passwd\"]"), "is not executable"),
    ] {
        assert!(reason(&text).contains(expected), "{text}: {}", reason(&text));
        assert!(!reason(&text).contains("s3cret"));
    }
    for valid in [
        format!("{webhook}{plain}headers = {{ X-Team = \"ml\" }}"),
        format!("{webhook}{local}headers = {{ Authorization = \"s3cret\" }}"),
        format!("{webhook}{local}token_file = \"{token}\""),
        format!("{webhook}url = \"http://[::1]:9/\"\ntoken_file = \"{token}\""),
        format!("{webhook}url = \"https://alerts.example/\"\ntoken_file = \"{token}\""),
        "[[receiver]]\ntype = \"command\"\ncommand = [\"/bin/sh\", \"-c\", \"true\"]".into(),
    ] {
        assert_eq!(errors(&valid), [""; 0], "{valid}");
    }
}

#[test]
fn world_readable_secrets_and_pipes_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (file, pipe) = (dir.path().join("file"), dir.path().join("pipe"));
    std::fs::write(&file, "http://127.0.0.1/\n").unwrap();
    // No process writes to it, so opening it would block.
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::set_permissions(&pipe, Permissions::from_mode(0o600)).unwrap();
    for option in ["url_file", "token_file"] {
        let url = if option == "url_file" { "" } else { "url = \"http://127.0.0.1:9/x\"\n" };
        let found = |file: &std::path::Path| {
            let file = file.display();
            errors(&format!("[[receiver]]\ntype = \"webhook\"\n{url}{option} = \"{file}\""))
        };
        for mode in [0o644, 0o604, 0o602] {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let found = found(&file);
            assert!(found.len() == 1 && found[0].contains("chmod 600"), "{option}: {found:?}");
        }
        for mode in [0o600, 0o640, 0o400] {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            assert_eq!(found(&file), [""; 0], "{option}");
        }
        assert!(found(&pipe)[0].contains("not a regular file"), "{:?}", found(&pipe));
    }
    let pipe = pipe.display();
    let text = format!(
        "[[receiver]]\ntype = \"webhook\"\nurl = \"http://127.0.0.1/\"\nca_file = \"{pipe}\""
    );
    assert!(reason(&text).contains("not a regular file"), "{}", reason(&text));
}

/// The configuration in the docs is valid, except for files that do not exist here.
#[test]
fn documented_configuration_is_valid() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/alerts.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> =
        text.split("\n```toml\n").skip(1).map(|rest| rest.split_once("\n```").unwrap().0).collect();
    assert_eq!(blocks.len(), 2);
    for block in &blocks {
        let config: crate::config::Config =
            toml::from_str(block).unwrap_or_else(|error| panic!("{block}: {error}"));
        let mut errors = config.check();
        errors.retain(|problem| {
            !problem.contains("cannot read /etc/vramscope/webhook-token")
                && !problem.contains("no program /usr/local/bin/on-alert")
        });
        assert_eq!(errors, [""; 0], "{block}");
    }
    let defaults: crate::config::Config = toml::from_str(blocks[0]).unwrap();
    assert_eq!(defaults.alerts.rules(), builtin::rules(&Thresholds::default()), "the defaults");
}
