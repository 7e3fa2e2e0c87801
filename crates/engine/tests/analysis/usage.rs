//! Comparison of usage series.

use engine::analysis::usage::{UsagePoint, UsageSeries};
use engine::model::ids::DeviceId;
use engine::model::units::Timestamp;
use proptest::prelude::*;

/// A device and its usage over time.
pub(crate) type DeviceSeries = (Option<DeviceId>, Vec<(Timestamp, u64)>);

/// Returns the points of device series.
pub(crate) fn points(series: &[UsageSeries]) -> Vec<DeviceSeries> {
    let points_of = |series: &UsageSeries| {
        let points = series.points.iter().map(|point| (point.at, point.bytes));
        (series.device, points.collect())
    };
    series.iter().map(points_of).collect()
}

/// Checks that a downsampled series is a subset that keeps the first, last, lowest and highest
/// point.
pub(crate) fn check_few(
    every: &UsageSeries,
    few: &UsageSeries,
    limit: usize,
) -> Result<(), TestCaseError> {
    let name = |series: &UsageSeries| (series.device, series.kind, series.pid, series.peak);
    prop_assert_eq!(name(every), name(few));
    prop_assert!(few.points.len() <= limit, "{} of {limit}", few.points.len());
    let mut rest = every.points.iter();
    for point in &few.points {
        prop_assert!(rest.any(|other| other == point), "{point:?} in {:?}", every.points);
    }
    prop_assert_eq!(few.points.first(), every.points.first());
    prop_assert_eq!(few.points.last(), every.points.last());
    let bytes = |points: &[UsagePoint]| {
        let all = || points.iter().map(|point| point.bytes);
        (all().min(), all().max())
    };
    prop_assert_eq!(bytes(&few.points), bytes(&every.points));
    prop_assert_eq!(bytes(&every.points).1, Some(every.peak.bytes));
    Ok(())
}
