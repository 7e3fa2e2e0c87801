//! The machine's monotonic clock and the wall's.

use engine::units::Moment;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// A wall clock that differs by more nanoseconds than this was set.
const SET: i128 = 100_000_000;

/// Translates moments into times of day. Fixed when tracing begins, so that a clock that is set
/// meanwhile does not reorder the report.
#[derive(Clone, PartialEq, Debug)]
pub struct WallClock {
    moment: Moment,
    time: Timestamp,
    zone: TimeZone,
}

impl WallClock {
    /// `moment` is now.
    #[must_use]
    pub fn now(moment: Moment) -> Self {
        Self { moment, time: Timestamp::now(), zone: TimeZone::system() }
    }

    /// The clock anew, where that of the host was set meanwhile; `moment` is now. Small differences are
    /// left alone, so that what happened keeps its time.
    #[must_use]
    pub fn corrected(&self, moment: Moment) -> Option<Self> {
        let now = Self { moment, time: Timestamp::now(), zone: TimeZone::system() };
        let ahead = now.time.as_nanosecond() - self.time(moment).as_nanosecond();
        (ahead.abs() > SET || now.zone != self.zone).then_some(now)
    }

    /// A clock for tests and files: `moment` was at `seconds` since 1970, UTC.
    #[must_use]
    pub fn fixed(moment: Moment, seconds: i64) -> Self {
        let time = Timestamp::from_second(seconds).unwrap_or_default();
        Self { moment, time, zone: TimeZone::UTC }
    }

    /// A clock that was written down: what [`WallClock::utc_nanos`], [`WallClock::zone`] and
    /// [`WallClock::offset`] said. A zone that this machine does not know is replaced by the offset.
    #[must_use]
    pub fn recorded(moment: Moment, utc_nanos: i64, zone: Option<&str>, offset: i32) -> Self {
        let named = zone.and_then(|name| TimeZone::get(name).ok());
        let fixed = || Offset::from_seconds(offset).map_or(TimeZone::UTC, TimeZone::fixed);
        let time = Timestamp::from_nanosecond(i128::from(utc_nanos)).unwrap_or_default();
        Self { moment, time, zone: named.unwrap_or_else(fixed) }
    }

    /// The wall clock at [`WallClock::start`], in nanoseconds since 1970, UTC.
    #[must_use]
    pub fn utc_nanos(&self) -> i64 {
        i64::try_from(self.time.as_nanosecond()).unwrap_or(0)
    }

    /// The name of the time zone, where it has one.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.zone.iana_name()
    }

    /// How far the time zone was from UTC at [`WallClock::start`], in seconds to the east.
    #[must_use]
    pub fn offset(&self) -> i32 {
        self.zone.to_offset(self.time).seconds()
    }

    /// The moment that the clock was set at: the beginning of a trace.
    #[must_use]
    pub const fn start(&self) -> Moment {
        self.moment
    }

    fn time(&self, moment: Moment) -> Timestamp {
        let ahead = i128::from(moment.0) - i128::from(self.moment.0);
        let ahead = SignedDuration::from_nanos(i64::try_from(ahead).unwrap_or(0));
        self.time.checked_add(ahead).unwrap_or(self.time)
    }

    /// A moment in nanoseconds since 1970, UTC.
    #[must_use]
    pub fn nanos(&self, moment: Moment) -> i64 {
        i64::try_from(self.time(moment).as_nanosecond()).unwrap_or(0)
    }

    /// RFC 3339 with milliseconds.
    #[must_use]
    pub fn precise(&self, moment: Moment) -> String {
        let zoned = self.time(moment).to_zoned(self.zone.clone());
        zoned.strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
    }

    /// RFC 3339 with seconds.
    #[must_use]
    pub fn short(&self, moment: Moment) -> String {
        let zoned = self.time(moment).to_zoned(self.zone.clone());
        zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }
}

/// Nanoseconds since 1970, UTC, as RFC 3339 with all nine digits.
pub(crate) fn rfc3339(utc_nanos: i64) -> String {
    let time = Timestamp::from_nanosecond(i128::from(utc_nanos)).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S%.9fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_written_down_shows_the_same_times() {
        let (moment, nanos) = (Moment(5_000_000_000), 1_700_000_000_123_456_789);
        for (zone, offset, time) in [
            (Some("Europe/Berlin"), 3600, "2023-11-14T23:13:20.123+01:00"),
            (Some("Nowhere/Else"), 5400, "2023-11-14T23:43:20.123+01:30"),
            (None, -3600, "2023-11-14T21:13:20.123-01:00"),
        ] {
            let clock = WallClock::recorded(moment, nanos, zone, offset);
            assert_eq!((clock.utc_nanos(), clock.offset()), (nanos, offset));
            assert_eq!(clock.precise(moment), time);
            let again =
                WallClock::recorded(moment, clock.utc_nanos(), clock.zone(), clock.offset());
            assert_eq!(again, clock);
        }
    }

    #[test]
    fn moments_become_times() {
        let clock = WallClock::fixed(Moment(5_000_000_000), 1_700_000_000);
        assert_eq!(clock.short(Moment(5_000_000_000)), "2023-11-14T22:13:20+00:00");
        assert_eq!(clock.precise(Moment(4_999_000_000)), "2023-11-14T22:13:19.999+00:00");
        assert_eq!(clock.short(Moment(u64::MAX)), "2023-11-14T22:13:20+00:00");
        assert_eq!(clock.nanos(Moment(5_000_000_007)), 1_700_000_000_000_000_007);
    }

    #[test]
    fn times_of_programs_have_nanoseconds() {
        assert_eq!(rfc3339(1_700_000_000_000_000_007), "2023-11-14T22:13:20.000000007Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(rfc3339(i64::MAX), "2262-04-11T23:47:16.854775807Z");
    }
}
