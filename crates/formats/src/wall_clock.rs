//! Conversion from the monotonic clock to wall-clock time.

use engine::model::Timestamp;
use jiff::SignedDuration;
use jiff::tz::{Offset, TimeZone};

/// A difference to the host's clock above this means that the host's clock was stepped, in
/// nanoseconds.
const CLOCK_STEP_NS: i128 = 100_000_000;

/// Translates monotonic timestamps to wall-clock times. Fixed when tracing begins, so that stepping
/// the host's clock does not reorder the report.
#[derive(Clone, PartialEq, Debug)]
pub struct WallClock {
    start: Timestamp,
    time: jiff::Timestamp,
    zone: TimeZone,
}

impl WallClock {
    /// Returns the host's clock; `start` is the current time.
    pub fn now(start: Timestamp) -> Self {
        Self { start, time: jiff::Timestamp::now(), zone: TimeZone::system() }
    }

    /// Returns a new clock if the host's clock was stepped or its time zone changed; `start` is
    /// the current time. Small differences are ignored, so that past events keep their times.
    pub fn corrected(&self, start: Timestamp) -> Option<Self> {
        let now = Self { start, time: jiff::Timestamp::now(), zone: TimeZone::system() };
        let step = now.time.as_nanosecond() - self.time(start).as_nanosecond();
        (step.abs() > CLOCK_STEP_NS || now.zone != self.zone).then_some(now)
    }

    /// Returns a clock for tests and files: `start` was at `seconds` since 1970, UTC.
    pub fn fixed(start: Timestamp, seconds: i64) -> Self {
        let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
        Self { start, time, zone: TimeZone::UTC }
    }

    /// Restores a clock from the values of [`WallClock::utc_nanos`], [`WallClock::zone`] and
    /// [`WallClock::offset`]. A zone that this host does not know is replaced by the offset.
    pub fn recorded(start: Timestamp, utc_nanos: i64, zone: Option<&str>, offset: i32) -> Self {
        let named = zone.and_then(|name| TimeZone::get(name).ok());
        let fixed = || Offset::from_seconds(offset).map_or(TimeZone::UTC, TimeZone::fixed);
        let time = jiff::Timestamp::from_nanosecond(i128::from(utc_nanos)).unwrap_or_default();
        Self { start, time, zone: named.unwrap_or_else(fixed) }
    }

    /// Returns the wall-clock time at [`WallClock::start`], in nanoseconds since 1970, UTC.
    pub fn utc_nanos(&self) -> i64 {
        i64::try_from(self.time.as_nanosecond()).unwrap_or(0)
    }

    /// Returns the IANA name of the time zone, if it has one.
    pub fn zone(&self) -> Option<&str> {
        self.zone.iana_name()
    }

    /// Returns the offset from UTC at [`WallClock::start`], in seconds to the east.
    pub fn offset(&self) -> i32 {
        self.zone.to_offset(self.time).seconds()
    }

    /// Returns the time at which the clock was fixed: the start of a trace.
    pub const fn start(&self) -> Timestamp {
        self.start
    }

    fn time(&self, at: Timestamp) -> jiff::Timestamp {
        let elapsed = i128::from(at.0) - i128::from(self.start.0);
        let elapsed = SignedDuration::from_nanos(i64::try_from(elapsed).unwrap_or(0));
        self.time.checked_add(elapsed).unwrap_or(self.time)
    }

    /// Returns a time in nanoseconds since 1970, UTC.
    pub fn nanos(&self, at: Timestamp) -> i64 {
        i64::try_from(self.time(at).as_nanosecond()).unwrap_or(0)
    }

    /// Returns the same clock in UTC.
    #[must_use]
    pub fn in_utc(self) -> Self {
        Self { zone: TimeZone::UTC, ..self }
    }

    /// Returns the same clock in the time zone of this host.
    #[must_use]
    pub fn in_local_time(self) -> Self {
        Self { zone: TimeZone::system(), ..self }
    }

    /// Formats a time for file names: `20261115-221807`.
    pub fn compact(&self, at: Timestamp) -> String {
        self.time(at).to_zoned(self.zone.clone()).strftime("%Y%m%d-%H%M%S").to_string()
    }

    /// Formats the time of day, without the date.
    pub fn time_of_day(&self, at: Timestamp) -> String {
        self.time(at).to_zoned(self.zone.clone()).strftime("%H:%M:%S").to_string()
    }

    /// Formats the time of day in minutes; with the date if it is on another day than the start.
    pub fn minute(&self, at: Timestamp) -> String {
        self.with_other_date(at, "%H:%M")
    }

    /// The same in seconds.
    pub fn second(&self, at: Timestamp) -> String {
        self.with_other_date(at, "%H:%M:%S")
    }

    /// The same in milliseconds.
    pub fn millisecond(&self, at: Timestamp) -> String {
        self.with_other_date(at, "%H:%M:%S%.3f")
    }

    /// Formats the date of the start.
    pub fn start_date(&self) -> String {
        self.time.to_zoned(self.zone.clone()).strftime("%Y-%m-%d").to_string()
    }

    fn with_other_date(&self, at: Timestamp, time_of_day: &str) -> String {
        let [start, zoned] =
            [self.time, self.time(at)].map(|time| time.to_zoned(self.zone.clone()));
        let date = if start.date() == zoned.date() { "" } else { "%Y-%m-%d " };
        zoned.strftime(&format!("{date}{time_of_day}")).to_string()
    }

    /// Formats a time as RFC 3339 with milliseconds.
    pub fn precise(&self, at: Timestamp) -> String {
        let zoned = self.time(at).to_zoned(self.zone.clone());
        zoned.strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
    }

    /// Formats a time as RFC 3339 with seconds.
    pub fn short(&self, at: Timestamp) -> String {
        let zoned = self.time(at).to_zoned(self.zone.clone());
        zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }
}

/// Formats nanoseconds since 1970, UTC, as RFC 3339 with all nine digits.
pub(crate) fn rfc3339(utc_nanos: i64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(utc_nanos)).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S%.9fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_clock_shows_the_same_times() {
        let (at, nanos) = (Timestamp(5_000_000_000), 1_700_000_000_123_456_789);
        for (zone, offset, time) in [
            (Some("Europe/Berlin"), 3600, "2023-11-14T23:13:20.123+01:00"),
            (Some("Nowhere/Else"), 5400, "2023-11-14T23:43:20.123+01:30"),
            (None, -3600, "2023-11-14T21:13:20.123-01:00"),
        ] {
            let clock = WallClock::recorded(at, nanos, zone, offset);
            assert_eq!((clock.utc_nanos(), clock.offset()), (nanos, offset));
            assert_eq!(clock.precise(at), time);
            let restored = WallClock::recorded(at, clock.utc_nanos(), clock.zone(), clock.offset());
            assert_eq!(restored, clock);
        }
    }

    #[test]
    fn timestamps_become_wall_clock_times() {
        let clock = WallClock::fixed(Timestamp(5_000_000_000), 1_700_000_000);
        assert_eq!(clock.short(Timestamp(5_000_000_000)), "2023-11-14T22:13:20+00:00");
        assert_eq!(clock.precise(Timestamp(4_999_000_000)), "2023-11-14T22:13:19.999+00:00");
        assert_eq!(clock.short(Timestamp(u64::MAX)), "2023-11-14T22:13:20+00:00");
        assert_eq!(clock.nanos(Timestamp(5_000_000_007)), 1_700_000_000_000_000_007);
    }

    #[test]
    fn rfc3339_has_nine_digits() {
        assert_eq!(rfc3339(1_700_000_000_000_000_007), "2023-11-14T22:13:20.000000007Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(rfc3339(i64::MAX), "2262-04-11T23:47:16.854775807Z");
    }
}
