//! Messages are what `docs/alerts.md` shows.

use std::path::Path;

use serde_json::Value;

use super::super::notice::Notice;
use super::super::{log, shapes};
use super::{alerts, at, clock};

/// A notice as of the document: the same process with a plain name.
fn notice() -> Notice {
    let mut alert = alerts(&["4711"]).remove(0);
    for (name, value) in &mut alert.labels {
        if *name == "process" {
            *value = "train".into();
        }
    }
    alert.fired = at(300);
    Notice { held_back: 2, ..Notice::new(&alert, &clock(), &"node-1".into()) }
}

/// The block of the document after a heading.
fn shown(heading: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/alerts.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once(&format!("### {heading}\n")).expect(heading);
    let (_, rest) = rest.split_once("\n```").expect("a block");
    let (_, rest) = rest.split_once('\n').expect("a block");
    rest.split_once("\n```").expect("its end").0.to_owned()
}

fn assert_shown(heading: &str, message: &str) {
    let message: Value = serde_json::from_str(message).unwrap();
    let shown: Value = serde_json::from_str(&shown(heading)).unwrap();
    assert_eq!(shown, message, "{}", serde_json::to_string_pretty(&message).unwrap());
}

#[test]
fn json_is_as_documented() {
    assert_shown("JSON", &shapes::json(&notice()));
}

#[test]
fn messages_for_alertmanager_are_as_documented() {
    let until = clock().precise(at(540));
    let source = "http://127.0.0.1:9754/api/v1/alerts";
    assert_shown("Alertmanager", &shapes::alertmanager(&[notice()], &until, source));
}

#[test]
fn messages_for_slack_are_as_documented() {
    assert_shown("Slack", &shapes::slack(&notice()));
}

#[test]
fn lines_of_the_log_are_as_documented() {
    assert_eq!(shown("Log"), format!("vramscope: {}", log::line(&notice())));
}

#[test]
fn names_call_nobody_in_slack() {
    let mut notice = notice();
    notice.labels[1].1 = "<!channel> & co".into();
    notice.summary = "<!channel> leaks".into();
    let message = shapes::slack(&notice);
    assert!(!message.contains('<') && !message.contains("> "), "{message}");
    assert!(message.contains("&lt;!channel&gt; &amp; co"), "{message}");
}
