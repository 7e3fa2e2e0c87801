//! Parts of a request's address: the path and query parameters.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use engine::model::Pid;
use serde::de::DeserializeOwned;

use super::response::ApiError;

/// Maximum of `limit`.
const MAX_LIMIT: usize = 10_000;

/// Query parameters of a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ListQuery {
    /// Only this process.
    pub(super) pid: Option<Pid>,
    /// Maximum number of entries.
    pub(super) limit: usize,
}

impl ListQuery {
    /// All entries.
    pub(super) const ALL: Self = Self { pid: None, limit: MAX_LIMIT };

    /// Whether a process is selected.
    pub(super) fn has_pid(self, pid: Pid) -> bool {
        self.pid.is_none_or(|wanted| wanted == pid)
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        let mut query = Self::ALL;
        for part in text.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("pid", pid)) => {
                    query.pid = Some(Pid(pid.parse().map_err(|_| "pid must be a process id")?));
                }
                Some(("limit", limit)) => {
                    let limit = limit.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    query.limit = limit.ok_or("limit must be 1 to 10000")?;
                }
                _ => return Err("unknown query parameter; use pid=N and limit=N"),
            }
        }
        Ok(query)
    }
}

impl<S: Sync> FromRequestParts<S> for ListQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Self::parse(parts.uri.query().unwrap_or_default()).map_err(ApiError::query)
    }
}

/// The query of a path that takes no parameters.
pub(super) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match parts.uri.query() {
            None | Some("") => Ok(Self),
            Some(_) => Err(ApiError::query("this endpoint takes no query parameters")),
        }
    }
}

/// The variable parts of a path; an invalid one is of nothing that exists.
pub(super) struct PathPart<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathPart<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(part)| Self(part)).map_err(|_| ApiError::NOT_FOUND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_read() {
        let query = ListQuery::parse("pid=7&limit=20").unwrap();
        assert_eq!(query, ListQuery { pid: Some(Pid(7)), limit: 20 });
        assert_eq!(ListQuery::parse(""), Ok(ListQuery::ALL));
        assert_eq!(ListQuery::parse("&&"), Ok(ListQuery::ALL));
    }

    #[test]
    fn unknown_query_parameters_are_rejected() {
        for text in ["limit=0", "limit=10001", "limit=x", "pid=-1", "pid=", "other=1", "pid"] {
            assert!(ListQuery::parse(text).is_err(), "{text}");
        }
    }
}
