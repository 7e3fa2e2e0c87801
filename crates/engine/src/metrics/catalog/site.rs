//! Metrics of allocation sites and leak suspects.

use crate::metrics::Cardinality::{Fixed, Sites, Suspects};
use crate::metrics::Metric;

use super::{SITE, SUSPECT, gauge};

/// Live device memory by allocation site.
pub static SITE_LIVE: Metric = gauge(
    "vramscope_site_live_bytes",
    "bytes",
    SITE,
    Sites,
    "Live device memory by allocation site",
);

/// Live allocations by allocation site.
pub static SITE_COUNT: Metric = gauge(
    "vramscope_site_live_allocations",
    "",
    SITE,
    Sites,
    "Live allocations by allocation site",
);

/// Leaks, by confidence.
pub static SUSPECTS: Metric = gauge(
    "vramscope_suspects",
    "",
    &["confidence"],
    Fixed(3),
    "Leak suspects, grouped by program and function, by confidence",
);

/// Live memory of a leak suspect.
pub static SUSPECT_LIVE: Metric = gauge(
    "vramscope_suspect_live_bytes",
    "bytes",
    SUSPECT,
    Suspects,
    "Live memory of a leak suspect",
);

/// Live objects of a leak suspect.
pub static SUSPECT_LIVE_OBJECTS: Metric = gauge(
    "vramscope_suspect_live_objects",
    "objects",
    SUSPECT,
    Suspects,
    "Live objects of a leak suspect",
);

/// Growth rate of a leak suspect in bytes.
pub static SUSPECT_GROWTH: Metric = gauge(
    "vramscope_suspect_growth_bytes_per_second",
    "bytes_per_second",
    SUSPECT,
    Suspects,
    "Growth rate of a leak suspect in bytes",
);

/// Growth rate of a leak suspect in objects.
pub static SUSPECT_GROWTH_OBJECTS: Metric = gauge(
    "vramscope_suspect_growth_objects_per_second",
    "objects_per_second",
    SUSPECT,
    Suspects,
    "Growth rate of a leak suspect in objects",
);

/// Estimated time until the GPU of a suspect is full.
pub static SUSPECT_FULL_IN: Metric = gauge(
    "vramscope_suspect_time_until_full_seconds",
    "seconds",
    SUSPECT,
    Suspects,
    "Estimated time until the GPU of a suspect is full",
);
