#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;
use engine::alert::{RuleExpr, Severity, Threshold};
use engine::model::units::Nanos;

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
        "leak_suspect = false\nfull_soon = \"2h\"\nout_of_memory = \"off\"\nnearly_full = 0.9\n\
         fragmentation = true\nuntracked_growth = \"off\"\ndegraded = false",
    );
    let rules = alerts.rules();
    let names: Vec<_> = rules.iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["full_soon", "nearly_full", "fragmentation", "lost_events", "not_ready"]);
    assert_eq!(rules[0].threshold, Threshold::Below(7200.0));
    assert_eq!(rules[1].threshold, Threshold::Above(0.9));
    assert_eq!(rules[2].threshold, Threshold::Above(0.4));
}

#[test]
fn invalid_thresholds_are_rejected_with_an_example() {
    for (text, expected) in [
        ("nearly_full = 95", "between 0 and 1, such as 0.95"),
        ("nearly_full = \"95%\"", "between 0 and 1"),
        ("full_soon = 6", "such as \"5m\""),
        ("full_soon = \"6 fortnights\"", "use ms, s, m, h or d"),
        ("untracked_growth = \"1X\"", "use K, M, G or T"),
        ("degraded = 3", "expected true, or \"off\""),
        ("nearly_ful = 0.9", "unknown field"),
        ("[[receiver]]\ntype = \"mail\"", "unknown variant"),
        ("[[receiver]]\ntype = \"log\"\ncolor = \"red\"", "unknown field"),
    ] {
        let error = toml::from_str::<AlertsConfig>(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

const RULE: &str = "[[rule]]\nname = \"mine\"\nmetric = \"vramscope_process_pinned_bytes\"\n";

#[test]
fn custom_rule_uses_the_unit_of_its_metric() {
    let text = format!(
        "{RULE}labels = {{ process = \"train\" }}\nabove = \"16G\"\nfor = \"5m\"\n\
         severity = \"critical\"\nsummary = \"{{process}} pins {{value}}\""
    );
    assert_eq!(errors(&text), [""; 0]);
    let rule = read(&text).rules().pop().unwrap();
    assert_eq!(rule.threshold, Threshold::Above((16_u64 << 30) as f64));
    assert_eq!(rule.hold, Nanos::from_millis(300_000));
    assert_eq!((rule.severity, rule.expr), (Severity::Critical, RuleExpr::Value));
    assert_eq!(rule.matching, [("process".into(), "train".into())]);
    let growing = read(&format!("{RULE}above = 5\nwindow = \"1h\"")).rules().pop().unwrap();
    assert_eq!(growing.expr, RuleExpr::Growth(Nanos::from_millis(3_600_000)));
    assert_eq!(
        &*growing.summary,
        "vramscope_process_pinned_bytes grew by {value} in 1h, more than {threshold}: pid={pid} process={process} \
         container={container} pod={pod} namespace={namespace}"
    );
}

#[test]
fn unknown_metric_gets_a_suggestion() {
    let text = "[[rule]]\nname = \"mine\"\nmetric = \"vramscope_proces_pined_bytes\"\nabove = 1";
    assert_eq!(
        reason(text),
        "[[alerts.rule]] mine: unknown metric `vramscope_proces_pined_bytes`; \
         did you mean `vramscope_process_pinned_bytes`?"
    );
    let text = "[[rule]]\nname = \"mine\"\nmetric = \"node_load1\"\nabove = 1";
    assert!(
        reason(text).ends_with("docs/reference/metrics.md lists all of them"),
        "{}",
        reason(text)
    );
    let long =
        format!("[[rule]]\nname = \"mine\"\nmetric = \"{}\"\nabove = 1", "x".repeat(100_000));
    assert!(reason(&long).len() < 500);
}

#[test]
fn invalid_rules_are_rejected_with_advice() {
    for (text, expected) in [
        (
            format!("{RULE}above = 1\nlabels = {{ gpu = \"0\" }}"),
            "has no label `gpu`; it has pid, process",
        ),
        (format!("{RULE}above = 1\nsummary = \"{{gpu}}\""), "{gpu} is unknown"),
        (format!("{RULE}above = 1\nbelow = 2"), "exactly one of `above` and `below`"),
        (RULE.to_owned(), "exactly one of `above` and `below`"),
        (format!("{RULE}above = \"soon\""), "unknown size unit `soon`"),
        (format!("{RULE}above = 1\nwindow = \"1ms\""), "at least \"1s\""),
        (
            "[[rule]]\nname = \"m\"\nmetric = \"vramscope_frees_total\"\nabove = 1".into(),
            "is a counter; set window",
        ),
        ("[[rule]]\nname = \"m\"\nmetric = \"vramscope_build_info\"\nabove = 1".into(), "always 1"),
        (
            "[[rule]]\nname = \"degraded\"\nmetric = \"vramscope_ready\"\nbelow = 1".into(),
            "a rule of that name exists",
        ),
        (
            "[[rule]]\nname = \"a b\"\nmetric = \"vramscope_ready\"\nbelow = 1".into(),
            "letters, digits",
        ),
    ] {
        assert!(reason(&text).contains(expected), "{text}: {}", reason(&text));
    }
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
        (format!("{webhook}url = \"ftp://a.example\""), "begin with https:// or http://"),
        (format!("{webhook}{local}token_file = \"/nowhere/token\""), "cannot read /nowhere/token"),
        (format!("{webhook}{local}token_file = \"{empty}\""), "must hold one line"),
        (
            format!("{webhook}url = \"http://alerts.example/x\"\ntoken_file = \"{token}\""),
            "the token would be sent unencrypted",
        ),
        (
            format!("{webhook}url = \"{disguised}\"\ntoken_file = \"{token}\""),
            "the token would be sent unencrypted",
        ),
        (format!("{webhook}url = \"{nowhere}\""), "invalid webhook URL"),
        (format!("{webhook}url = \"https://a.example/a b\\n\""), "invalid webhook URL"),
        (format!("{webhook}url = \"http://a.example:99999/\""), "1 to 65535"),
        (format!("{webhook}url = \"http://a.example:0/\""), "1 to 65535"),
        (format!("{webhook}{local}headers = {{ \"X Y\" = \"a\" }}"), "not a valid header name"),
        (format!("{webhook}{local}headers = {{ X = \"a\\nb\" }}"), "cannot be sent"),
        (
            format!("{webhook}{plain}headers = {{ X-Api-Key = \"s3cret\" }}"),
            "`X-Api-Key` would be sent unencrypted",
        ),
        (format!("{webhook}{plain}headers = {{ Authorization = \"s3cret\" }}"), "https://"),
        (format!("{webhook}url = \"{password}\""), "the password in the URL"),
        (format!("{webhook}{local}token_header = \"X-Key\""), "requires token_file"),
        (format!("{webhook}{local}ca_file = \"{token}\""), "holds no certificate"),
        (
            format!("{webhook}{local}command = [\"/bin/true\"]"),
            "`command` applies only to command receivers",
        ),
        (format!("{webhook}{local}retries = 11"), "at most 10"),
        (
            format!("{webhook}{local}format = \"alertmanager\"\nrepeat_interval = \"1h\""),
            "`repeat_interval` applies only to other formats than alertmanager",
        ),
        (format!("{log}rate_limit = 0"), "rate_limit must be 1 or more"),
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
    assert_eq!(blocks.len(), 3);
    for block in &blocks {
        let config: crate::serve::config::Config =
            toml::from_str(block).unwrap_or_else(|error| panic!("{block}: {error}"));
        let mut errors = config.check();
        errors.retain(|problem| {
            !problem.contains("cannot read /etc/vramscope/webhook-token")
                && !problem.contains("no program /usr/local/bin/on-alert")
        });
        assert_eq!(errors, [""; 0], "{block}");
    }
    let defaults: crate::serve::config::Config = toml::from_str(blocks[0]).unwrap();
    assert_eq!(defaults.alerts.rules(), builtin::rules(&Thresholds::default()), "the defaults");
}
