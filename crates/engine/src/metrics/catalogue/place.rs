//! Places in programs, and suspects among them.

use crate::metrics::Bound::{Fixed, Sites, Suspects};
use crate::metrics::Metric;

use super::{SITE, SUSPECT, gauge};

/// Live device memory by the place in programs that it came from.
pub static SITE_LIVE: Metric = gauge(
    "vramscope_site_live_bytes",
    "bytes",
    SITE,
    Sites,
    "Live device memory by the place in programs that it came from",
);

/// Live allocations by the place in programs that they came from.
pub static SITE_COUNT: Metric = gauge(
    "vramscope_site_live_allocations",
    "",
    SITE,
    Sites,
    "Live allocations by the place in programs that they came from",
);

/// Places that are suspected of a leak, by how sure that is.
pub static SUSPECTS: Metric = gauge(
    "vramscope_suspects",
    "",
    &["sureness"],
    Fixed(3),
    "Places that are suspected of a leak, by how sure that is",
);

/// What is live of a suspect: bytes, or a number of objects.
pub static SUSPECT_LIVE: Metric = gauge(
    "vramscope_suspect_live",
    "",
    SUSPECT,
    Suspects,
    "What is live of a suspect: bytes, or a number of objects",
);

/// How fast a suspect grows: bytes, or a number of objects, per hour.
pub static SUSPECT_GROWTH: Metric = gauge(
    "vramscope_suspect_growth_per_hour",
    "",
    SUSPECT,
    Suspects,
    "How fast a suspect grows: bytes, or a number of objects, per hour",
);

/// When the GPU of a suspect will be full if it goes on like this.
pub static SUSPECT_FULL_IN: Metric = gauge(
    "vramscope_suspect_seconds_until_full",
    "seconds",
    SUSPECT,
    Suspects,
    "When the GPU of a suspect will be full if it goes on like this",
);
