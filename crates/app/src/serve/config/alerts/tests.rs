#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;
use engine::alert::{Limit, Measure, Severity};
use engine::units::Nanos;

fn read(text: &str) -> Alerts {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn wrong(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    read(text).check(&mut wrong);
    wrong
}

/// The one thing that is wrong.
fn reason(text: &str) -> String {
    let wrong = wrong(text);
    let [reason] = &wrong[..] else { panic!("{wrong:#?}") };
    reason.clone()
}

#[test]
fn without_settings_every_built_in_rule_is_on_and_alerts_are_logged() {
    let alerts = read("");
    assert_eq!(alerts.rules(), builtin::rules(&Thresholds::default()));
    let [action] = &alerts.actions()[..] else { panic!() };
    assert_eq!(action.kind, Kind::Log);
    assert_eq!(wrong(""), [""; 0]);
}

#[test]
fn limits_are_set_and_rules_are_switched_off() {
    let alerts = read(
        "leak_suspect = false\nfull_soon = \"2h\"\nout_of_memory = \"off\"\nnearly_full = 0.9\n\
         fragmentation = true\nuntracked_growth = \"off\"\ndegraded = false",
    );
    let rules = alerts.rules();
    let names: Vec<_> = rules.iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["full_soon", "nearly_full", "fragmentation", "lost_events", "not_ready"]);
    assert_eq!(rules[0].limit, Limit::Below(7200.0));
    assert_eq!(rules[1].limit, Limit::Above(0.9));
    assert_eq!(rules[2].limit, Limit::Above(0.4));
}

#[test]
fn limits_that_make_no_sense_are_refused_with_an_example() {
    for (text, says) in [
        ("nearly_full = 95", "between 0 and 1, such as 0.95"),
        ("nearly_full = \"95%\"", "between 0 and 1"),
        ("full_soon = 6", "such as \"5m\""),
        ("full_soon = \"6 fortnights\"", "use ms, s, m, h or d"),
        ("untracked_growth = \"1X\"", "use K, M, G or T"),
        ("degraded = 3", "expected true, or \"off\""),
        ("nearly_ful = 0.9", "unknown field"),
        ("[[receiver]]\ntype = \"mail\"", "unknown variant"),
        ("[[receiver]]\ntype = \"log\"\ncolour = \"red\"", "unknown field"),
    ] {
        let error = toml::from_str::<Alerts>(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

const RULE: &str = "[[rule]]\nname = \"mine\"\nmetric = \"vramscope_process_pinned_bytes\"\n";

#[test]
fn a_rule_of_ones_own_is_read_in_the_unit_of_its_metric() {
    let text = format!(
        "{RULE}labels = {{ process = \"train\" }}\nabove = \"16G\"\nfor = \"5m\"\n\
         severity = \"critical\"\nsummary = \"{{process}} pins {{value}}\""
    );
    assert_eq!(wrong(&text), [""; 0]);
    let rule = read(&text).rules().pop().unwrap();
    assert_eq!(rule.limit, Limit::Above((16_u64 << 30) as f64));
    assert_eq!(rule.hold, Nanos::from_millis(300_000));
    assert_eq!((rule.severity, rule.measure), (Severity::Critical, Measure::Value));
    assert_eq!(rule.matching, [("process".into(), "train".into())]);
    let growing = read(&format!("{RULE}above = 5\nwindow = \"1h\"")).rules().pop().unwrap();
    assert_eq!(growing.measure, Measure::Growth(Nanos::from_millis(3_600_000)));
    assert_eq!(
        &*growing.summary,
        "vramscope_process_pinned_bytes grew by {value} in 1h, more than {threshold}: pid={pid} process={process} \
         container={container} pod={pod} namespace={namespace}"
    );
}

#[test]
fn a_metric_that_there_is_not_is_named_with_the_one_that_is_meant() {
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
fn rules_that_cannot_work_are_refused_with_what_to_do() {
    for (text, says) in [
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
        assert!(reason(&text).contains(says), "{text}: {}", reason(&text));
    }
}

#[test]
fn actions_that_cannot_work_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    let empty = folder.path().join("empty");
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
    for (text, says) in [
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
        assert!(reason(&text).contains(says), "{text}: {}", reason(&text));
        assert!(!reason(&text).contains("s3cret"));
    }
    for fine in [
        format!("{webhook}{plain}headers = {{ X-Team = \"ml\" }}"),
        format!("{webhook}{local}headers = {{ Authorization = \"s3cret\" }}"),
        format!("{webhook}{local}token_file = \"{token}\""),
        format!("{webhook}url = \"http://[::1]:9/\"\ntoken_file = \"{token}\""),
        format!("{webhook}url = \"https://alerts.example/\"\ntoken_file = \"{token}\""),
        "[[receiver]]\ntype = \"command\"\ncommand = [\"/bin/sh\", \"-c\", \"true\"]".into(),
    ] {
        assert_eq!(wrong(&fine), [""; 0], "{fine}");
    }
}

#[test]
fn a_secret_that_anybody_can_read_or_that_is_a_pipe_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
    std::fs::write(&file, "http://127.0.0.1/\n").unwrap();
    // Nobody writes to it: who opens it waits.
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::set_permissions(&pipe, Permissions::from_mode(0o600)).unwrap();
    for option in ["url_file", "token_file"] {
        let url = if option == "url_file" { "" } else { "url = \"http://127.0.0.1:9/x\"\n" };
        let found = |file: &std::path::Path| {
            let file = file.display();
            wrong(&format!("[[receiver]]\ntype = \"webhook\"\n{url}{option} = \"{file}\""))
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

/// The configuration of the document is read as it stands; of files that are not here that is said.
#[test]
fn settings_of_the_document_are_right() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/alerts.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> =
        text.split("\n```toml\n").skip(1).map(|rest| rest.split_once("\n```").unwrap().0).collect();
    assert_eq!(blocks.len(), 3);
    for block in &blocks {
        let config: crate::serve::config::Config =
            toml::from_str(block).unwrap_or_else(|error| panic!("{block}: {error}"));
        let mut wrong = config.check();
        wrong.retain(|why| {
            !why.contains("cannot read /etc/vramscope/webhook-token")
                && !why.contains("no program /usr/local/bin/on-alert")
        });
        assert_eq!(wrong, [""; 0], "{block}");
    }
    let usual: crate::serve::config::Config = toml::from_str(blocks[0]).unwrap();
    assert_eq!(usual.alerts.rules(), builtin::rules(&Thresholds::default()), "the defaults");
}
