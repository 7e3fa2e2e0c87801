//! Payloads match the examples in `docs/operations/alerts.md`.

use std::path::Path;

use serde_json::Value;

use super::super::notification::Notification;
use super::super::{log, slack};
use super::{alerts, at, clock};

/// The notification of the page: the same process with a plain name.
fn notification() -> Notification {
    let mut alert = alerts(&["4711"]).remove(0);
    for (name, value) in &mut alert.labels {
        if *name == "program" {
            *value = "train.py".into();
        }
    }
    Notification { suppressed: 2, ..Notification::new(&alert, &clock(), &"node-1".into()) }
}

/// Returns the code block after a heading of the page.
fn documented(heading: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations/alerts.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once(&format!("### {heading}\n")).expect(heading);
    let (_, rest) = rest.split_once("\n```").expect("a block");
    let (_, rest) = rest.split_once('\n').expect("a block");
    rest.split_once("\n```").expect("its end").0.to_owned()
}

fn assert_documented(heading: &str, message: &Value) {
    let documented: Value = serde_json::from_str(&documented(heading)).unwrap();
    assert_eq!(documented, *message, "{}", serde_json::to_string_pretty(message).unwrap());
}

#[test]
fn json_is_as_documented() {
    assert_documented("JSON", &serde_json::to_value(notification()).unwrap());
}

#[test]
fn messages_for_slack_are_as_documented() {
    assert_documented("Slack", &slack::message(&notification()));
}

#[test]
fn lines_of_the_log_are_as_documented() {
    let line = format!("2023-11-14T22:18:20.123Z WARN  {}", log::line(&notification()));
    assert_eq!(documented("Log"), line);
}

#[test]
fn names_notify_no_user_in_slack() {
    let mut notification = notification();
    notification.labels.insert("process", "<!channel> & co".into());
    notification.summary = "<!channel> leaks".into();
    let message = slack::message(&notification).to_string();
    assert!(!message.contains('<') && !message.contains("> "), "{message}");
    assert!(message.contains("&lt;!channel&gt; &amp; co"), "{message}");
}

#[test]
fn names_are_not_markup_in_slack_compatible_services() {
    let mut notification = notification();
    let name = "@all *y* ~z~ [a](b) _c_ __d__ `e` train_step";
    notification.labels.insert("process", name.into());
    notification.summary = format!("{name} leaks");
    notification.advice = format!("Stop {name}");
    notification.host = name.into();
    let message = slack::message(&notification);
    let attachment = &message["attachments"][0];
    let texts = [
        &message["text"],
        &attachment["fallback"],
        &attachment["text"],
        &attachment["footer"],
        &attachment["fields"][3]["value"],
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
fn resolved_alert_is_marked_as_such() {
    let mut alert = alerts(&["4711"]).remove(0);
    alert.resolved = Some(at(400));
    let notification = Notification::new(&alert, &clock(), &"node-1".into());
    let line = log::line(&notification);
    assert!(line.contains("alert resolved: leak_suspect (warning): no longer so: "), "{line}");
    let json = serde_json::to_value(&notification).unwrap();
    assert!(json["summary"].as_str().unwrap().starts_with("no longer so: "), "{json}");
}
