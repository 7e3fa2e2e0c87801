//! Fragmentation of caches and pools, as reports print it.

use engine::analysis::fragmentation::{self, Advice, Fit, Owner, Pool};
use engine::cache::{CachePool, Part};
use engine::ids::DeviceId;
use engine::units::Bytes;
use formats::export::analysis as export;
use formats::import::gather::Facts;

/// Returns the fragmentation of a file. `would_fit`: the size of a request to check.
pub(crate) fn describe(facts: &Facts, would_fit: Option<Bytes>) -> export::Fragmentation {
    let found = fragmentation::analyse(&facts.segments, &facts.pools, &facts.settings);
    let fits = would_fit.map(|requested| {
        let devices = found.devices.iter().map(|device| device.device);
        devices.map(|device| fit(device, requested, found.would_fit(device, requested.0))).collect()
    });
    export::Fragmentation {
        pools: found.pools.iter().map(pool).collect(),
        advice: found.advice.iter().map(advice).collect(),
        would_fit: fits.unwrap_or_default(),
    }
}

fn pool(pool: &Pool) -> export::Pool {
    let pid = match pool.owner {
        Owner::Driver(pid, _) => Some(pid),
        Owner::Cache(_) => None,
    };
    export::Pool {
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
fn name(owner: Owner) -> String {
    match owner {
        Owner::Driver(_, 0) => "driver default".to_owned(),
        Owner::Driver(_, handle) => format!("driver {handle:#x}"),
        Owner::Cache(CachePool { id, part }) => {
            let part = match part {
                Part::Whole => "all",
                Part::Small => "small",
                Part::Large => "large",
            };
            if id == (0, 0) { part.to_owned() } else { format!("{part} of {}:{}", id.0, id.1) }
        }
    }
}

fn advice(advice: &Advice) -> export::Advice {
    let what = advice.what.setting().unwrap_or_else(|| "no setting".to_owned());
    export::Advice { what, why: advice.what.reason() }
}

fn fit(device: Option<DeviceId>, requested: Bytes, fit: Fit) -> export::WouldFit {
    let (answer, how) = match fit {
        Fit::InFreeBlock { block_bytes } => {
            ("free_block", format!("fits into a free block of {}", Bytes(block_bytes)))
        }
        Fit::AfterEmptyCache { releasable_bytes } => (
            "after_empty_cache",
            format!("fits after empty_cache(), which frees {}", Bytes(releasable_bytes)),
        ),
        Fit::OnlyDefragmented { free_bytes, more_bytes } => (
            "after_defragmentation",
            format!(
                "does not fit: {} are free but fragmented; the device must provide {}",
                Bytes(free_bytes),
                Bytes(more_bytes)
            ),
        ),
        Fit::NeedsMore { more_bytes } => {
            ("needs_more", format!("does not fit: the device must provide {}", Bytes(more_bytes)))
        }
    };
    let name = device.map_or_else(|| "gpu_?".to_owned(), |device| device.to_string());
    let text = format!("{requested} on {name}: {how}");
    export::WouldFit { device, bytes: requested.0, answer, text }
}
