//! Fragmentation of caches and pools, as reports print it.

use engine::analysis::fragmentation::{
    self, FitResult, FragmentationAdvice, PoolFragmentation, PoolOwner,
};
use engine::model::caching_allocator::{CachePool, PoolSizeClass};
use engine::model::ids::DeviceId;
use engine::model::units::Bytes;
use engine::snapshot::ProcessView;
use formats::import::collecting_sink::FileInfo;
use formats::report::analysis as view;

/// Returns the fragmentation of a file. `would_fit`: the size of a request to check.
pub(crate) fn describe(info: &FileInfo, would_fit: Option<Bytes>) -> view::FragmentationView {
    let analysis = fragmentation::analyze(&info.segments, &info.pools, &info.settings);
    let fits = would_fit.map(|requested| {
        let devices = analysis.devices.iter().map(|device| device.device);
        devices
            .map(|device| fit(device, requested, analysis.would_fit(device, requested.0)))
            .collect()
    });
    let processes = info.state.iter().flat_map(|state| &state.snapshot.processes);
    view::FragmentationView {
        pools: analysis.pools.iter().map(pool).chain(processes.flat_map(caches)).collect(),
        advice: analysis.advice.iter().map(advice).collect(),
        would_fit: fits.unwrap_or_default(),
    }
}

/// Returns PyTorch's caches of a recorded process.
fn caches(process: &ProcessView) -> impl Iterator<Item = view::PoolRow> + '_ {
    let devices = process.torch.iter().flat_map(|torch| &torch.devices);
    devices.map(|cache| {
        let known = cache.fragmentation.ok();
        view::PoolRow {
            device: Some(cache.device),
            pid: Some(process.key.pid),
            pool: "PyTorch".to_owned(),
            stream: None,
            reserved_bytes: Some(cache.reserved.0),
            active_bytes: cache.allocated.0,
            requested_bytes: None,
            largest_free_bytes: known.map(|known| known.largest_gap.0),
            internal: None,
            external: None,
            releasable_bytes: known.map(|known| known.releasable.0),
            stuck_bytes: known.map(|known| known.fragmented.0),
        }
    })
}

fn pool(pool: &PoolFragmentation) -> view::PoolRow {
    let pid = match pool.owner {
        PoolOwner::Driver(pid, _) => Some(pid),
        PoolOwner::Cache(_) => None,
    };
    view::PoolRow {
        device: pool.device,
        pid,
        pool: name(pool.owner),
        stream: pool.stream,
        reserved_bytes: pool.reserved_bytes,
        active_bytes: pool.active_bytes,
        requested_bytes: pool.requested_bytes,
        largest_free_bytes: pool.largest_free_bytes,
        internal: pool.internal,
        external: pool.external,
        releasable_bytes: pool.releasable_bytes,
        stuck_bytes: pool.stuck_bytes,
    }
}

/// `large`, `small of 2:0`, `driver 0x90`.
fn name(owner: PoolOwner) -> String {
    match owner {
        PoolOwner::Driver(_, 0) => "driver default".to_owned(),
        PoolOwner::Driver(_, handle) => format!("driver {handle:#x}"),
        PoolOwner::Cache(CachePool { id, size_class }) => {
            let part = match size_class {
                PoolSizeClass::Whole => "all",
                PoolSizeClass::Small => "small",
                PoolSizeClass::Large => "large",
            };
            if id == (0, 0) { part.to_owned() } else { format!("{part} of {}:{}", id.0, id.1) }
        }
    }
}

fn advice(advice: &FragmentationAdvice) -> view::AdviceRow {
    let what = advice.suggestion.setting().unwrap_or_else(|| "no setting".to_owned());
    view::AdviceRow { action: what, reason: advice.suggestion.reason() }
}

fn fit(device: Option<DeviceId>, requested: Bytes, fit: FitResult) -> view::WouldFit {
    let (answer, explanation) = match fit {
        FitResult::InFreeBlock { block_bytes } => {
            ("free_block", format!("fits into a free block of {}", Bytes(block_bytes)))
        }
        FitResult::AfterEmptyCache { releasable_bytes } => (
            "after_empty_cache",
            format!("fits after empty_cache(), which frees {}", Bytes(releasable_bytes)),
        ),
        FitResult::OnlyDefragmented { free_bytes, more_bytes } => (
            "after_defragmentation",
            format!(
                "does not fit: {} are free but fragmented; the device must provide {}",
                Bytes(free_bytes),
                Bytes(more_bytes)
            ),
        ),
        FitResult::NeedsMore { more_bytes } => {
            ("needs_more", format!("does not fit: the device must provide {}", Bytes(more_bytes)))
        }
    };
    let name = device.map_or_else(|| "gpu_?".to_owned(), |device| device.to_string());
    let text = format!("{requested} on {name}: {explanation}");
    view::WouldFit { device, bytes: requested.0, answer, text }
}
