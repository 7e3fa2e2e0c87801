//! Values of launches and copies that text and JSON share.

pub mod json;
pub mod text;

use engine::model::{LaunchTarget, Nanos, UnnamedReason, bandwidth_of};
use engine::snapshot::{CopyView, KernelView, Snapshot};

use crate::kernel_name::KernelName;
use crate::sanitize::{MAX_KERNEL_NAME_CHARS, sanitize, sanitize_up_to};

/// Returns the short and full name of a kernel; a handle if it has no name.
pub(crate) fn kernel_name(view: &KernelView) -> KernelName {
    match (&view.name, view.target) {
        (Some(name), _) => {
            let KernelName { short, full } = KernelName::of(name);
            KernelName {
                short: sanitize(&short).into_owned(),
                full: sanitize_up_to(&full, MAX_KERNEL_NAME_CHARS).into_owned(),
            }
        }
        (None, LaunchTarget::Kernel(kernel)) => same(format!("kernel {:#x}", kernel.0)),
        (None, LaunchTarget::Graph(exec)) => same(format!("graph {:#x}", exec.0)),
    }
}

fn same(name: String) -> KernelName {
    KernelName { short: name.clone(), full: name }
}

/// Returns why a kernel has no name, as a phrase.
pub(crate) const fn unnamed_reason(reason: UnnamedReason) -> &'static str {
    match reason {
        UnnamedReason::BeforeTrace => {
            "loaded before the trace, and its name was not found in driver memory"
        }
        UnnamedReason::Unreadable => "its name could not be read from process memory",
        UnnamedReason::Lost => "the event with its name was lost",
    }
}

/// Returns a count per second.
pub(crate) fn rate(count: u64, time: Nanos) -> f64 {
    if time.0 == 0 { 0.0 } else { count as f64 / (time.0 as f64 / 1e9) }
}

/// Returns bytes per second of synchronous copies: all bytes over all time.
pub(crate) fn mean_bandwidth(view: &CopyView) -> Option<f64> {
    (!view.asynchronous && view.time.0 > 0).then(|| rate(view.bytes.0, view.time))
}

/// Returns the bandwidth below which a share of the copies stayed: the middle of its bandwidth
/// class, so accurate to less than 25 %.
pub(crate) fn bandwidth_at(view: &CopyView, share: f64) -> Option<u64> {
    let all: u64 = view.bandwidths.iter().map(|(_, count)| count).sum();
    let wanted = (all as f64 * share).ceil().max(1.0);
    let mut seen = 0;
    for (class, count) in &view.bandwidths {
        seen += count;
        if seen as f64 >= wanted {
            let (low, high) = (bandwidth_of(*class), bandwidth_of(class.saturating_add(1)));
            return Some(low + (high - low) / 2);
        }
    }
    None
}

/// Returns whether every launch and copy since the start of the trace is counted.
pub(crate) fn exact(snapshot: &Snapshot) -> bool {
    let lost = &snapshot.uncertainty.lost;
    let complete = snapshot.uncertainty.capture_ended.is_none();
    complete && lost.launches == 0 && lost.copies == 0 && lost.events() == 0
}

#[cfg(test)]
mod tests {
    use engine::model::units::Bytes;

    use super::*;
    use engine::model::activity::CopyDirection;

    #[test]
    fn percentiles_are_the_middle_of_their_class() {
        let view = CopyView {
            direction: CopyDirection::HostToDevice,
            asynchronous: false,
            calls: 10,
            bytes: Bytes(1 << 30),
            recent_bytes: Bytes(0),
            time: Nanos(500_000_000),
            bandwidths: vec![(1, 5), (9, 5)],
        };
        assert_eq!(bandwidth_at(&view, 0.5), Some(1152));
        assert_eq!(bandwidth_at(&view, 0.51), Some(4608));
        assert_eq!(bandwidth_at(&view, 1.0), Some(4608));
        assert_eq!(mean_bandwidth(&view), Some((1_u64 << 31) as f64));
        let none = CopyView { bandwidths: Vec::new(), asynchronous: true, ..view };
        assert_eq!((bandwidth_at(&none, 0.5), mean_bandwidth(&none)), (None, None));
    }
}
