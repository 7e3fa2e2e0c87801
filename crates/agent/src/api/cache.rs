//! Responses, built once per snapshot: many requests cost no more than one.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use axum::body::Bytes;
use formats::export::hide_directories;

use super::query::ListQuery;
use crate::PublishedSnapshot;

/// Maximum number of cached responses, and their total bytes, because clients can send many
/// different queries.
const MAX_CACHED_RESPONSES: usize = 128;
const MAX_CACHED_BYTES: usize = 16 << 20;

/// Path and query of a response.
pub(super) type CacheKey = (&'static str, ListQuery);

/// A snapshot that clients may see: without directories of file paths, unless the configuration
/// allows them. Answers that contain call stacks take no other.
#[derive(Clone)]
pub(super) struct Visible(Arc<PublishedSnapshot>);

impl Visible {
    /// Returns a snapshot of which clients may see everything.
    pub(super) const fn whole(published: Arc<PublishedSnapshot>) -> Self {
        Self(published)
    }
}

impl Deref for Visible {
    type Target = PublishedSnapshot;

    fn deref(&self) -> &PublishedSnapshot {
        &self.0
    }
}

/// Responses for the latest snapshot.
#[derive(Default)]
pub(super) struct ResponseCache {
    sequence: u64,
    /// The snapshot without directories of file paths.
    redacted: Option<Visible>,
    responses: HashMap<CacheKey, Bytes>,
    bytes: usize,
}

impl ResponseCache {
    /// Drops responses of older snapshots.
    fn advance_to(&mut self, published: &PublishedSnapshot) {
        if self.sequence != published.sequence {
            *self = Self { sequence: published.sequence, ..Self::default() };
        }
    }

    /// Returns the snapshot without directories of file paths.
    pub(super) fn redacted(&mut self, published: &PublishedSnapshot) -> Visible {
        self.advance_to(published);
        let redact = || {
            let mut snapshot = published.snapshot.clone();
            hide_directories(&mut snapshot);
            let (context, metrics) = (Arc::clone(&published.context), published.metrics.clone());
            let (sequence, own) = (published.sequence, published.own.clone());
            Visible(Arc::new(PublishedSnapshot { sequence, snapshot, context, metrics, own }))
        };
        self.redacted.get_or_insert_with(redact).clone()
    }

    /// Returns a response, built once per path and query while there is room. There is always room
    /// for those without parameters.
    pub(super) fn response(
        &mut self,
        published: &PublishedSnapshot,
        key: CacheKey,
        build: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<Bytes> {
        self.advance_to(published);
        if let Some(cached) = self.responses.get(&key) {
            return Some(cached.clone());
        }
        let response = Bytes::from(build()?);
        let bytes = self.bytes.saturating_add(response.len());
        let has_room = self.responses.len() < MAX_CACHED_RESPONSES && bytes <= MAX_CACHED_BYTES;
        if has_room || key.1 == ListQuery::ALL {
            self.responses.insert(key, response.clone());
            self.bytes = bytes;
        }
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use engine::metrics::MetricSet;
    use engine::model::Pid;
    use engine::snapshot::Snapshot;

    use super::*;
    use crate::exporters;

    fn published(sequence: u64) -> PublishedSnapshot {
        exporters::published(sequence, Snapshot::default(), MetricSet::default())
    }

    const PID_1: ListQuery = ListQuery { pid: Some(Pid(1)), ..ListQuery::ALL };

    #[test]
    fn response_is_built_once_per_snapshot() {
        let mut cache = ResponseCache::default();
        let mut built = 0;
        for (sequence, path, query, expected) in [
            (1, "sites", ListQuery::ALL, 1),
            (1, "sites", ListQuery::ALL, 1),
            (1, "sites", PID_1, 2),
            (1, "gpus", ListQuery::ALL, 3),
            (1, "sites", PID_1, 3),
            (2, "sites", ListQuery::ALL, 4),
            (2, "sites", ListQuery::ALL, 4),
        ] {
            let response = cache.response(&published(sequence), (path, query), || {
                built += 1;
                Some(vec![built])
            });
            assert_eq!((built, response.unwrap().is_empty()), (expected, false), "{path}");
        }
    }

    #[test]
    fn cached_responses_are_bounded() {
        let (mut cache, published) = (ResponseCache::default(), published(1));
        for limit in 1..=1000 {
            let query = ListQuery { pid: None, limit };
            cache.response(&published, ("sites", query), || Some(vec![1])).unwrap();
        }
        assert_eq!(cache.responses.len(), MAX_CACHED_RESPONSES);
        cache.response(&published, ("metrics", ListQuery::ALL), || Some(vec![1])).unwrap();
        assert_eq!(cache.responses.len(), MAX_CACHED_RESPONSES + 1);
        let mut cache = ResponseCache::default();
        for limit in 1..=9 {
            let query = ListQuery { pid: None, limit };
            cache.response(&published, ("sites", query), || Some(vec![1; MAX_CACHED_BYTES / 3]));
        }
        assert_eq!(cache.responses.len(), 3);
    }
}
