//! Messages are what `docs/operations/alerts.md` shows.

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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations/alerts.md");
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

#[test]
fn names_are_no_markup_for_those_that_do_as_slack_does() {
    let mut notice = notice();
    let name = "@all *y* ~z~ [a](b) _c_ __d__ `e` train_step";
    notice.labels[1].1 = name.into();
    notice.summary = format!("{name} leaks");
    notice.advice = format!("Stop {name}");
    notice.host = name.into();
    let message: Value = serde_json::from_str(&shapes::slack(&notice)).unwrap();
    let attachment = &message["attachments"][0];
    let texts = [
        &message["text"],
        &attachment["fallback"],
        &attachment["text"],
        &attachment["footer"],
        &attachment["fields"][1]["value"],
    ];
    for text in texts {
        let text = text.as_str().unwrap();
        assert!(!text.contains(['@', '*', '~']), "{text}");
        assert!(!text.contains("](") && !text.contains("_c") && !text.contains("d_"), "{text}");
        assert!(text.contains("train_step"), "{text}");
    }
    assert!(!message["text"].as_str().unwrap().contains('`'), "{message}");
}

#[test]
fn an_alert_that_is_over_does_not_state_that_it_goes_on() {
    let mut alert = alerts(&["4711"]).remove(0);
    alert.resolved = Some(at(400));
    let notice = Notice::new(&alert, &clock(), &"node-1".into());
    let line = log::line(&notice);
    assert!(line.contains("alert resolved: leak_suspect (warning): no longer so: "), "{line}");
    let json: Value = serde_json::from_str(&shapes::json(&notice)).unwrap();
    assert!(json["summary"].as_str().unwrap().starts_with("no longer so: "), "{json}");
}
