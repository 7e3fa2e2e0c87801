use engine::alert::Alert;
use engine::model::{Nanos, Timestamp};

use super::super::throttle::{DueNotification, NotificationThrottle, RateLimit};
use super::{alerts, at};

fn seconds(seconds: u64) -> Nanos {
    Nanos(seconds * 1_000_000_000)
}

fn resolve(alert: &Alert, end: Timestamp) -> Alert {
    Alert { resolved: Some(end), ..alert.clone() }
}

fn ids(due: &[DueNotification]) -> Vec<u64> {
    due.iter().map(|due| due.alert.id).collect()
}

const PACE: RateLimit =
    RateLimit { repeat_every: None, at_most: 20, per: Nanos(600 * 1_000_000_000) };

#[test]
fn each_alert_and_state_is_notified_once() {
    let alerts = alerts(&["1"]);
    let mut throttle = NotificationThrottle::new(PACE);
    assert_eq!(ids(&throttle.due_notifications(&[&alerts[0]], &[], at(0)).0), [1]);
    for second in 1..5000 {
        assert_eq!(throttle.due_notifications(&[&alerts[0]], &[], at(second)), (vec![], 0));
    }
    let end = resolve(&alerts[0], at(5000));
    let (due, _) = throttle.due_notifications(&[], &[&end], at(5000));
    assert_eq!(due[0].alert.resolved, Some(at(5000)));
    assert_eq!(throttle.due_notifications(&[], &[&end], at(5001)), (vec![], 0));
}

#[test]
fn firing_alerts_are_repeated_if_configured() {
    let alerts = alerts(&["1"]);
    let mut throttle =
        NotificationThrottle::new(RateLimit { repeat_every: Some(seconds(3600)), ..PACE });
    let mut notified = Vec::new();
    for second in 0..8000 {
        let (due, _) = throttle.due_notifications(&[&alerts[0]], &[], at(second));
        notified.extend(due.iter().map(|due| (second, due.is_repeated)));
    }
    assert_eq!(notified, [(0, false), (3600, true), (7200, true)]);
}

#[test]
fn rate_limited_messages_are_counted_and_sent_later() {
    let pids: Vec<String> = (0..5).map(|pid| pid.to_string()).collect();
    let alerts = alerts(&pids.iter().map(String::as_str).collect::<Vec<_>>());
    let all: Vec<&Alert> = alerts.iter().collect();
    let mut throttle =
        NotificationThrottle::new(RateLimit { at_most: 2, per: seconds(60), ..PACE });
    let (due, suppressed) = throttle.due_notifications(&all, &[], at(0));
    assert_eq!((ids(&due), suppressed), (vec![1, 2], 3));
    assert_eq!(throttle.due_notifications(&all, &[], at(1)), (vec![], 0), "each is counted once");
    let (due, suppressed) = throttle.due_notifications(&all, &[], at(60));
    assert_eq!((ids(&due), suppressed), (vec![3, 4], 0));
    // The third was itself suppressed, so two others were; the fourth reports none.
    assert_eq!((due[0].suppressed, due[1].suppressed), (2, 0));
    // The last one resolves before there was room for it, so it is never sent.
    let end = resolve(&alerts[4], at(61));
    assert_eq!(throttle.due_notifications(&all[..4], &[&end], at(120)), (vec![], 0));
}

#[test]
fn highest_severity_is_notified_first() {
    let mut alerts = alerts(&["1", "2"]);
    let mut rule = (*alerts[1].rule).clone();
    rule.severity = engine::alert::Severity::Critical;
    alerts[1].rule = rule.into();
    let mut throttle = NotificationThrottle::new(RateLimit { at_most: 1, ..PACE });
    assert_eq!(ids(&throttle.due_notifications(&[&alerts[0], &alerts[1]], &[], at(0)).0), [2]);
}
