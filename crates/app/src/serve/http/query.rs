//! What stands behind the `?` of a request.

/// The most of a list that can be asked for.
const MOST: usize = 10_000;

/// What may be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Query {
    /// Of one process.
    pub(super) pid: Option<u32>,
    /// At most so many.
    pub(super) top: usize,
}

impl Query {
    /// Everything.
    pub(super) const ALL: Self = Self { pid: None, top: MOST };

    /// Reads it, for a path that can be asked for less or not; the error tells what is wrong.
    pub(super) fn read(text: Option<&str>, is_list: bool) -> Result<Self, &'static str> {
        let mut query = Self::ALL;
        let parts = text.unwrap_or_default().split('&').filter(|part| !part.is_empty());
        for part in parts {
            match part.split_once('=') {
                _ if !is_list => return Err("this endpoint takes no query parameters"),
                Some(("pid", pid)) => {
                    query.pid = Some(pid.parse().map_err(|_| "pid must be a process id")?);
                }
                Some(("limit", top)) => {
                    let top = top.parse().ok().filter(|top| (1..=MOST).contains(top));
                    query.top = top.ok_or("limit must be 1 to 10000")?;
                }
                _ => return Err("unknown query parameter; use pid=N and limit=N"),
            }
        }
        Ok(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_can_be_asked_for() {
        assert_eq!(Query::read(None, true), Ok(Query::ALL));
        assert_eq!(Query::read(Some("limit=3&pid=7"), true), Ok(Query { pid: Some(7), top: 3 }));
        for wrong in [
            "limit=0",
            "limit=10001",
            "limit=-1",
            "top=3",
            "pid=",
            "pid=x",
            "pid",
            "sort=size",
            "a&b",
        ] {
            assert!(Query::read(Some(wrong), true).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_path_would_not_heed_is_an_error() {
        for wrong in ["limit=3", "pid=7", "x"] {
            assert!(
                Query::read(Some(wrong), false).unwrap_err().contains("no query parameters"),
                "{wrong}"
            );
        }
        for nothing in [None, Some(""), Some("&")] {
            assert_eq!(Query::read(nothing, false), Ok(Query::ALL));
        }
    }
}
