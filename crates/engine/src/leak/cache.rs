//! Verdicts on memory that PyTorch's cache allocated from the driver. The program never frees that
//! memory itself, so on its own it often looks like a leak. It stays a leak unless the tensors in
//! the cache account for it.

use super::GrowthHistory;
use crate::model::{Frame, Nanos};
use crate::verdict::{CacheTensors, Confidence, Evidence, Verdict};

/// Library of PyTorch's caching allocator.
const TORCH_CACHE: &str = "libc10_cuda.so";

/// Minimum number of windows to decide that tensors do not grow.
const MIN_WINDOWS: usize = 8;

/// Parts of the paths of libraries that cache device memory until the process exits.
const CACHING_ALLOCATORS: [&str; 7] = [
    TORCH_CACHE,
    "xla_cuda_plugin",
    "libtensorflow_framework",
    "_pywrap_tensorflow",
    "libonnxruntime_providers_cuda",
    "librmm",
    "/cupy/cuda/memory",
];

/// Whether a call stack goes through the caching allocator of a framework.
pub(crate) fn is_framework_cache(frames: &[Frame]) -> bool {
    let modules = frames.iter().filter_map(|frame| frame.module.as_deref());
    modules.into_iter().any(|path| CACHING_ALLOCATORS.iter().any(|part| path.contains(part)))
}

/// Whether a call stack goes through PyTorch's caching allocator.
pub(crate) fn is_torch_cache<'a>(mut frames: impl Iterator<Item = &'a Frame>) -> bool {
    frames.any(|frame| {
        let module = frame.module.as_deref().unwrap_or_default();
        module.rsplit('/').next() == Some(TORCH_CACHE)
    })
}

/// Whether a level is bounded: its maximum in the last quarter of the time is at most 1/30 above
/// its maximum before. `false` while there is not enough data.
pub(crate) fn is_bounded(level: &GrowthHistory, now: Nanos, live: u64) -> bool {
    let (_, _, windows) = level.windows_until(now, live);
    let (before, late) = windows.split_at(windows.len() - windows.len() / 4);
    let highest = |part: &[super::Window]| part.iter().map(|window| window.high).max();
    let (Some(before), Some(late)) = (highest(before), highest(late)) else { return false };
    windows.len() >= MIN_WINDOWS && late <= before.saturating_add(before / 30)
}

/// Memory of the cache that no tensor used at any time in the last quarter of the time. Tensors
/// cannot explain it: at their peak it was unused, too.
pub(crate) fn always_unused(unused: &GrowthHistory, now: Nanos, live: u64) -> u64 {
    let (_, _, windows) = unused.windows_until(now, live);
    let late = windows.get(windows.len() - (windows.len() / 4).max(1).min(windows.len())..);
    late.unwrap_or_default().iter().map(|window| window.low).min().unwrap_or(live)
}

/// Adjusts the verdict on cache memory, given the verdict it would get as ordinary memory.
pub(crate) fn classify_cache(
    (verdict, confidence, evidence): (Verdict, Confidence, Evidence),
    tensors: CacheTensors,
) -> (Verdict, Confidence, Evidence) {
    let evidence = Evidence { tensors: Some(tensors), ..evidence };
    if verdict == Verdict::Leak && tensors.account_for_cache() {
        return (Verdict::Cache, Confidence::Likely, evidence);
    }
    (verdict, confidence, evidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn level(values: impl Iterator<Item = u64>) -> (GrowthHistory, Nanos, u64) {
        let (mut history, mut before, mut at) = (GrowthHistory::default(), 0, 0);
        for value in values {
            at += 10 * MIB;
            history.level(Nanos(at), before, value);
            before = value;
        }
        (history, Nanos(at), before)
    }

    fn bounded(values: impl Iterator<Item = u64>) -> bool {
        let (history, now, live) = level(values);
        is_bounded(&history, now, live)
    }

    #[test]
    fn level_that_rises_in_the_last_quarter_is_not_bounded() {
        assert!(bounded((0..200).map(|step| 100 + step % 7)));
        assert!(bounded((0..200).map(|step| 100 + step.min(100))));
        assert!(!bounded((0..200).map(|step| 100 + step)));
        assert!(!bounded((0..200).map(|step| if step < 190 { 100 } else { 104 })));
        assert!(!bounded(std::iter::empty()));
    }

    #[test]
    fn tensors_account_for_the_cache_by_growth_or_by_size() {
        let leak = || (Verdict::Leak, Confidence::Certain, Evidence::default());
        let tensors = CacheTensors {
            live: 10,
            peak: 80,
            cache: 120,
            growth_per_hour: 0,
            cache_growth_per_hour: 9,
            bounded: true,
            unused: 0,
            failed_captures: 0,
            during_capture: false,
        };
        let verdict = |tensors| classify_cache(leak(), tensors).0;
        assert_eq!(verdict(tensors), Verdict::Cache);
        assert_eq!(verdict(CacheTensors { peak: 79, ..tensors }), Verdict::Leak);
        let growing = CacheTensors { bounded: false, ..tensors };
        assert_eq!(verdict(growing), Verdict::Leak);
        assert_eq!(verdict(CacheTensors { growth_per_hour: 5, ..growing }), Verdict::Leak);
        assert_eq!(verdict(CacheTensors { growth_per_hour: 6, ..growing }), Verdict::Cache);
        let captured = CacheTensors { during_capture: true, ..tensors };
        assert_eq!(verdict(captured), Verdict::Leak);
        let other = (Verdict::Plateau, Confidence::Possible, Evidence::default());
        let (verdict, confidence, evidence) = classify_cache(other, tensors);
        assert_eq!((verdict, confidence), (Verdict::Plateau, Confidence::Possible));
        assert_eq!(evidence.tensors, Some(tensors));
    }
}
