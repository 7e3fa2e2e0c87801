use engine::alert::Alert;
use engine::units::{Moment, Nanos};

use super::super::sync::Sync;
use super::super::teller::{Due, Pace, Teller};
use super::{alerts, at};

fn seconds(seconds: u64) -> Nanos {
    Nanos(seconds * 1_000_000_000)
}

fn over(alert: &Alert, end: Moment) -> Alert {
    Alert { resolved: Some(end), ..alert.clone() }
}

fn ids(due: &[Due]) -> Vec<u64> {
    due.iter().map(|due| due.alert.id).collect()
}

const PACE: Pace = Pace { repeat_every: None, at_most: 20, per: Nanos(600 * 1_000_000_000) };

#[test]
fn each_alert_and_state_is_told_once() {
    let alerts = alerts(&["1"]);
    let mut teller = Teller::new(PACE);
    assert_eq!(ids(&teller.due(&[&alerts[0]], &[], at(0)).0), [1]);
    for second in 1..5000 {
        assert_eq!(teller.due(&[&alerts[0]], &[], at(second)), (vec![], 0));
    }
    let end = over(&alerts[0], at(5000));
    let (due, _) = teller.due(&[], &[&end], at(5000));
    assert_eq!(due[0].alert.resolved, Some(at(5000)));
    assert_eq!(teller.due(&[], &[&end], at(5001)), (vec![], 0));
}

#[test]
fn what_goes_on_is_told_again_where_somebody_asked_for_that() {
    let alerts = alerts(&["1"]);
    let mut teller = Teller::new(Pace { repeat_every: Some(seconds(3600)), ..PACE });
    let mut told = Vec::new();
    for second in 0..8000 {
        let (due, _) = teller.due(&[&alerts[0]], &[], at(second));
        told.extend(due.iter().map(|due| (second, due.is_repeated)));
    }
    assert_eq!(told, [(0, false), (3600, true), (7200, true)]);
}

#[test]
fn what_is_too_much_is_held_back_counted_and_told_later() {
    let pids: Vec<String> = (0..5).map(|pid| pid.to_string()).collect();
    let alerts = alerts(&pids.iter().map(String::as_str).collect::<Vec<_>>());
    let all: Vec<&Alert> = alerts.iter().collect();
    let mut teller = Teller::new(Pace { at_most: 2, per: seconds(60), ..PACE });
    let (due, held) = teller.due(&all, &[], at(0));
    assert_eq!((ids(&due), held), (vec![1, 2], 3));
    assert_eq!(teller.due(&all, &[], at(1)), (vec![], 0), "each is counted once");
    let (due, held) = teller.due(&all, &[], at(60));
    assert_eq!((ids(&due), held), (vec![3, 4], 0));
    // The third was one of three itself, so two others were held back; the fourth tells no more.
    assert_eq!((due[0].held_back, due[1].held_back), (2, 0));
    // The last one is over before there was room for it: nobody hears of it.
    let end = over(&alerts[4], at(61));
    assert_eq!(teller.due(&all[..4], &[&end], at(120)), (vec![], 0));
}

#[test]
fn the_worst_is_told_first() {
    let mut alerts = alerts(&["1", "2"]);
    let mut rule = (*alerts[1].rule).clone();
    rule.severity = engine::alert::Severity::Critical;
    alerts[1].rule = rule.into();
    let mut teller = Teller::new(Pace { at_most: 1, ..PACE });
    assert_eq!(ids(&teller.due(&[&alerts[0], &alerts[1]], &[], at(0)).0), [2]);
}

#[test]
fn alertmanager_hears_of_all_alerts_again_and_again() {
    let alerts = alerts(&["1", "2"]);
    let mut sync = Sync::default();
    let mut heard = Vec::new();
    for second in 0..100 {
        // The second one begins at once after the first message, and is over after a minute.
        let end = over(&alerts[1], at(70));
        let (firing, past): (Vec<&Alert>, Vec<&Alert>) = match second {
            0 => (vec![&alerts[0]], vec![]),
            1..70 => (vec![&alerts[0], &alerts[1]], vec![]),
            _ => (vec![&alerts[0]], vec![&end]),
        };
        if let Some(message) = sync.due(&firing, &past, at(second)) {
            let states: Vec<_> =
                message.iter().map(|one| (one.id, one.resolved.is_some())).collect();
            heard.push((second, states));
        }
    }
    assert_eq!(
        heard,
        [
            (0, vec![(1, false)]),
            (5, vec![(1, false), (2, false)]),
            (65, vec![(1, false), (2, false)]),
            (70, vec![(1, false), (2, true)]),
        ]
    );
}

#[test]
fn alertmanager_forgets_what_is_long_over() {
    let alerts = alerts(&["1"]);
    let mut sync = Sync::default();
    assert!(sync.due(&[&alerts[0]], &[], at(0)).is_some());
    let end = over(&alerts[0], at(10));
    let messages =
        (10..3000).filter(|second| sync.due(&[], &[&end], at(*second)).is_some()).count();
    assert!((14..=16).contains(&messages), "one a minute for a quarter of an hour: {messages}");
}
