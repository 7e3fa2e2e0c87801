//! Shows figures to the rules, and what comes of it to everybody who is to be told.

use std::time::{Duration, Instant};

use engine::alert::{Alert, Book};
use engine::metrics::Figures;
use engine::units::Moment;
use formats::WallClock;
use formats::plain::plain;

use super::outlet::Outlet;
use super::{AlertView, Board};
use crate::serve::config::alerts::Alerts;

/// See the module.
pub(super) struct Watch {
    book: Book,
    outlets: Vec<Outlet>,
}

impl Watch {
    pub(super) fn new(config: &Alerts, outlets: Vec<Outlet>) -> Self {
        Self { book: Book::new(config.rules(), config.keep_firing_for.nanos()), outlets }
    }

    /// Looks at the figures of a moment.
    pub(super) fn look(
        &mut self,
        figures: &Figures,
        now: Moment,
        clock: &WallClock,
        board: &Board,
    ) {
        self.book.look(figures, now);
        let firing = self.book.firing();
        let over: Vec<&Alert> = self.book.past().collect();
        for outlet in &mut self.outlets {
            outlet.tell(&firing, &over, now, clock, board);
        }
        board.show(firing.into_iter().chain(over).map(|alert| view(alert, clock)).collect());
    }

    /// Alerts that there was no room for.
    pub(super) const fn passed_over(&self) -> u64 {
        self.book.passed_over()
    }

    /// Why the thread of an outlet ended, if one did.
    pub(super) fn failure(&mut self) -> Option<anyhow::Error> {
        self.outlets.iter_mut().find_map(Outlet::failure)
    }

    /// Nothing follows: what is on its way may take this long.
    pub(super) fn finish(self, grace: Duration) {
        let end = Instant::now() + grace;
        for outlet in &self.outlets {
            outlet.close();
        }
        for outlet in self.outlets {
            outlet.finish(end);
        }
    }
}

fn view(alert: &Alert, clock: &WallClock) -> AlertView {
    let labels = alert.labels.iter();
    AlertView {
        rule: plain(&alert.rule.name).into_owned(),
        severity: alert.rule.severity.name().into(),
        labels: labels.map(|(name, value)| ((*name).into(), plain(value).into_owned())).collect(),
        summary: super::notice::summary(alert),
        value: alert.value,
        since: clock.precise(alert.since),
        resolved: alert.resolved.map(|moment| clock.precise(moment)),
    }
}
