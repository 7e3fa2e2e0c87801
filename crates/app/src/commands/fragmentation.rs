//! What caches and pools hold and cannot use, in the words of reports.

use engine::units::Bytes;
use formats::export::analysis::{Fragmentation, Pool, WouldFit};
use formats::import::gather::Facts;

/// The answer for a file. `would_fit`: a request that is asked about.
pub(crate) fn answer(facts: &Facts, would_fit: Option<Bytes>) -> Fragmentation {
    let pools: Vec<Pool> = facts
        .pools
        .iter()
        .map(|sums| Pool {
            device: sums.device,
            pool: if sums.pool == 0 { "default".into() } else { format!("{:#x}", sums.pool) },
            stream: None,
            reserved_bytes: sums.reserved,
            active_bytes: sums.used,
            requested_bytes: None,
            largest_free_bytes: None,
            internal: None,
            external: None,
            releasable_bytes: None,
            stuck_bytes: None,
        })
        .collect();
    let fits = |pool: &Pool, asked: Bytes| {
        let free = pool.reserved_bytes?.saturating_sub(pool.active_bytes);
        let (answer, text) = if free >= asked.0 {
            ("after_defragmentation", "fits at best: only the sum of what is free is known")
        } else {
            ("needs_more", "does not fit into what is reserved")
        };
        let text = format!("{asked} in pool {}: {text} ({} free)", pool.pool, Bytes(free));
        Some(WouldFit { device: pool.device, bytes: asked.0, answer, text })
    };
    let would_fit = would_fit
        .map(|asked| pools.iter().filter_map(|pool| fits(pool, asked)).collect())
        .unwrap_or_default();
    Fragmentation { pools, advice: Vec::new(), would_fit }
}
