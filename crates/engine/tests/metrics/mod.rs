//! Metrics from snapshots: which series exist, and that counters only grow.

mod catalog;
mod docs;
mod fixture;
mod series;
mod values;
