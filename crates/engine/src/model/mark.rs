//! Marks: labels that users and programs set at points in time, such as `epoch 3`.

use std::sync::Arc;

use crate::model::named::named_enum;
use crate::model::{Event, EventKind, Pid, Timestamp};

named_enum! {
    /// What a mark says of its label.
    pub enum MarkKind {
        /// It is reached: the next point of the same process ends it.
        Point => "point",
        /// It begins.
        Begin => "begin",
        /// The newest one with that label ends.
        End => "end",
    }
}

/// A mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Time.
    pub at: Timestamp,
    /// Process that it is about; `None` for the whole host.
    pub pid: Option<Pid>,
    /// Kind.
    pub kind: MarkKind,
    /// Label; untrusted.
    pub label: Arc<str>,
}

impl Mark {
    /// Maximum length of a label in bytes.
    pub const MAX_LABEL_BYTES: usize = 256;

    /// Returns the mark of an event, if it is one.
    pub fn of(event: &Event) -> Option<Self> {
        let EventKind::Mark { kind, label } = &event.kind else { return None };
        let pid = (event.pid != Pid(0)).then_some(event.pid);
        Some(Self { at: event.time, pid, kind: *kind, label: (**label).into() })
    }
}

/// The time between two marks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Phase {
    /// Label; untrusted.
    pub label: Arc<str>,
    /// Process that it is about; `None` for the whole host.
    pub pid: Option<Pid>,
    /// Whether it began with a point.
    pub is_point: bool,
    /// Start.
    pub begin: Timestamp,
    /// End; `None` if nothing ended it.
    pub end: Option<Timestamp>,
}

impl Phase {
    /// Returns the phases of marks, ordered by their start. A point ends the one before it of the same
    /// process, an end without a begin is ignored.
    pub fn of(marks: &[Mark]) -> Vec<Self> {
        let mut sorted: Vec<&Mark> = marks.iter().collect();
        sorted.sort_by_key(|mark| mark.at);
        let mut phases: Vec<Self> = Vec::new();
        for mark in sorted {
            let Mark { at, pid, kind, label } = mark;
            let is_point = *kind == MarkKind::Point;
            let ended = |open: &&mut Self| {
                open.end.is_none()
                    && open.pid == *pid
                    && open.is_point == is_point
                    && (is_point || open.label == *label)
            };
            if *kind != MarkKind::Begin
                && let Some(open) = phases.iter_mut().rev().find(ended)
            {
                open.end = Some(*at);
            }
            if *kind != MarkKind::End {
                phases.push(Self {
                    label: Arc::clone(label),
                    pid: *pid,
                    is_point,
                    begin: *at,
                    end: None,
                });
            }
        }
        phases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(at: u64, pid: u32, kind: MarkKind, label: &str) -> Mark {
        Mark { at: Timestamp(at), pid: (pid != 0).then_some(Pid(pid)), kind, label: label.into() }
    }

    #[test]
    fn points_follow_each_other_and_ranges_nest() {
        use MarkKind::{Begin, End, Point};
        let marks = [
            mark(1, 7, Point, "epoch 1"),
            mark(2, 7, Begin, "step"),
            mark(3, 7, Begin, "step"),
            mark(4, 8, Point, "other"),
            mark(5, 7, End, "step"),
            mark(6, 7, Point, "epoch 2"),
            mark(7, 7, End, "never begun"),
            mark(8, 0, Point, "host"),
        ];
        let phases = Phase::of(&marks);
        let rows: Vec<_> =
            phases.iter().map(|one| (&*one.label, one.begin.0, one.end.map(|end| end.0))).collect();
        let expected = [
            ("epoch 1", 1, Some(6)),
            ("step", 2, None),
            ("step", 3, Some(5)),
            ("other", 4, None),
            ("epoch 2", 6, None),
            ("host", 8, None),
        ];
        assert_eq!(rows, expected);
    }
}
