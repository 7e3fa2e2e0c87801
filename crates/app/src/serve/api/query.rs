//! Query parameters of a request.

/// Maximum of `limit`.
const MAX_LIMIT: usize = 10_000;

/// Query parameters of a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ListQuery {
    /// Only this process.
    pub(super) pid: Option<u32>,
    /// Maximum number of entries.
    pub(super) top: usize,
}

impl ListQuery {
    /// All entries.
    pub(super) const ALL: Self = Self { pid: None, top: MAX_LIMIT };

    /// Parses the parameters; only lists take any.
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
                    let top = top.parse().ok().filter(|top| (1..=MAX_LIMIT).contains(top));
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
    fn list_parameters_are_validated() {
        assert_eq!(ListQuery::read(None, true), Ok(ListQuery::ALL));
        assert_eq!(
            ListQuery::read(Some("limit=3&pid=7"), true),
            Ok(ListQuery { pid: Some(7), top: 3 })
        );
        for invalid in [
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
            assert!(ListQuery::read(Some(invalid), true).is_err(), "{invalid}");
        }
    }

    #[test]
    fn unknown_query_parameters_are_rejected() {
        for invalid in ["limit=3", "pid=7", "x"] {
            assert!(
                ListQuery::read(Some(invalid), false).unwrap_err().contains("no query parameters"),
                "{invalid}"
            );
        }
        for nothing in [None, Some(""), Some("&")] {
            assert_eq!(ListQuery::read(nothing, false), Ok(ListQuery::ALL));
        }
    }
}
