//! Responses, built once per snapshot: many requests cost no more than one. They contain the paths
//! of the snapshot, see [`ResponseCache::redacted`].

use std::collections::HashMap;
use std::sync::Arc;

use engine::model::ids::Pid;
use engine::snapshot::{SiteProcess, Snapshot};
use formats::export::{hide_directories, openmetrics};
use formats::report::live::json;
use hyper::body::Bytes;
use serde_json::Value;

use super::endpoints;
use super::query::ListQuery;
use crate::serve::{PublishedSnapshot, exporters};

/// Sites per process in the API; the list over all processes is complete.
const SITES_PER_PROCESS: usize = 10;

/// Maximum number of cached responses, and their total bytes, because clients can send many
/// different queries.
const MAX_CACHED_RESPONSES: usize = 128;
const MAX_CACHED_BYTES: usize = 16 << 20;

/// Responses for the latest snapshot.
#[derive(Default)]
pub(super) struct ResponseCache {
    sequence: u64,
    /// The snapshot without directories of file paths.
    redacted: Option<Arc<PublishedSnapshot>>,
    metrics: Option<Bytes>,
    report: Option<Arc<Value>>,
    snapshot: Option<Bytes>,
    profile: Option<Bytes>,
    /// Responses of the API, by path and query.
    responses: HashMap<(Box<str>, ListQuery), Bytes>,
    responses_bytes: usize,
}

impl ResponseCache {
    /// Drops responses of older snapshots.
    fn advance_to(&mut self, published: &PublishedSnapshot) {
        if self.sequence != published.sequence {
            *self = Self { sequence: published.sequence, ..Self::default() };
        }
    }

    /// Returns the snapshot without directories of file paths.
    pub(super) fn redacted(&mut self, published: &PublishedSnapshot) -> Arc<PublishedSnapshot> {
        self.advance_to(published);
        let redact = || {
            let mut snapshot = published.snapshot.clone();
            hide_directories(&mut snapshot);
            let (context, metrics) = (Arc::clone(&published.context), published.metrics.clone());
            let (sequence, own) = (published.sequence, published.own.clone());
            Arc::new(PublishedSnapshot { sequence, snapshot, context, metrics, own })
        };
        Arc::clone(self.redacted.get_or_insert_with(redact))
    }

    /// Returns the metrics as OpenMetrics.
    pub(super) fn metrics(&mut self, published: &PublishedSnapshot) -> Option<Bytes> {
        self.advance_to(published);
        if self.metrics.is_none() {
            let metrics = Arc::new(published.metrics.clone());
            self.metrics = openmetrics::encode(metrics).ok().map(Bytes::from);
        }
        self.metrics.clone()
    }

    /// Returns the snapshot as `trace --format json` prints it, with the version of the API.
    pub(super) fn report(&mut self, published: &PublishedSnapshot) -> Option<Arc<Value>> {
        self.advance_to(published);
        if self.report.is_none() {
            let mut snapshot = published.snapshot.clone();
            for process in &mut snapshot.processes {
                process.sites.truncate(SITES_PER_PROCESS);
            }
            let mut report = json::value(&snapshot, &published.context).ok()?;
            if let Some(fields) = report.as_object_mut() {
                fields.insert("api".into(), endpoints::VERSION.into());
            }
            self.report = Some(Arc::new(report));
        }
        self.report.clone()
    }

    /// Returns the sites of one process. In the report, a site that several processes share has the
    /// totals of all of them; here it has those of one.
    pub(super) fn sites_of(published: &PublishedSnapshot, pid: u32) -> Option<Value> {
        let mut snapshot = Snapshot { processes: Vec::new(), ..published.snapshot.clone() };
        let all = &published.snapshot.processes;
        let process = all.iter().find(|process| process.key.pid.0 == pid);
        snapshot.sites = process.map_or_else(Vec::new, |process| process.sites.clone());
        for site in &mut snapshot.sites {
            let (live_bytes, live_allocations) = (site.live_bytes, site.live_allocations);
            let live = site.kinds.iter().filter(|view| view.live_allocations > 0);
            let kinds = live.map(Into::into).collect();
            site.processes =
                vec![SiteProcess { pid: Some(Pid(pid)), live_bytes, live_allocations, kinds }];
        }
        json::value(&snapshot, &published.context).ok()
    }

    /// Returns the report as bytes.
    pub(super) fn snapshot(&mut self, published: &PublishedSnapshot) -> Option<Bytes> {
        let report = self.report(published)?;
        if self.snapshot.is_none() {
            self.snapshot = Some(report.to_string().into());
        }
        self.snapshot.clone()
    }

    /// Returns a response of the API, built once per path and query while there is room.
    pub(super) fn response(
        &mut self,
        published: &PublishedSnapshot,
        (path, query): (&str, ListQuery),
        build: impl FnOnce(&mut Self) -> Option<Value>,
    ) -> Option<Bytes> {
        self.advance_to(published);
        let key = (Box::from(path), query);
        if let Some(cached) = self.responses.get(&key) {
            return Some(cached.clone());
        }
        let response = Bytes::from(endpoints::envelope(published, build(self)?).to_string());
        let bytes = self.responses_bytes.saturating_add(response.len());
        if self.responses.len() < MAX_CACHED_RESPONSES && bytes <= MAX_CACHED_BYTES {
            self.responses.insert(key, response.clone());
            self.responses_bytes = bytes;
        }
        Some(response)
    }

    /// Returns memory in use by call stack.
    pub(super) fn profile(&mut self, published: &PublishedSnapshot) -> Bytes {
        self.advance_to(published);
        let encode = || Bytes::from(exporters::pprof::pprof(published, true));
        self.profile.get_or_insert_with(encode).clone()
    }
}

#[cfg(test)]
mod tests {
    use engine::metrics::MetricSet;
    use engine::snapshot::Snapshot;
    use serde_json::json;

    use super::*;

    fn published(sequence: u64) -> PublishedSnapshot {
        exporters::published(sequence, Snapshot::default(), MetricSet::default())
    }

    #[test]
    fn response_is_built_once_per_snapshot() {
        let mut cache = ResponseCache::default();
        let mut built = 0;
        for (sequence, path, query, expected) in [
            (1, "sites", ListQuery::ALL, 1),
            (1, "sites", ListQuery::ALL, 1),
            (1, "sites", ListQuery { pid: Some(1), ..ListQuery::ALL }, 2),
            (1, "gpus", ListQuery::ALL, 3),
            (1, "sites", ListQuery { pid: Some(1), ..ListQuery::ALL }, 3),
            (2, "sites", ListQuery::ALL, 4),
            (2, "sites", ListQuery::ALL, 4),
        ] {
            let response = cache.response(&published(sequence), (path, query), |_| {
                built += 1;
                Some(json!({ "built": built }))
            });
            let response: Value = serde_json::from_slice(&response.unwrap()).unwrap();
            assert_eq!((built, &response["api"]), (expected, &"v1".into()), "{path} {query:?}");
        }
    }

    #[test]
    fn cached_responses_are_bounded() {
        let (mut cache, published) = (ResponseCache::default(), published(1));
        for top in 1..=1000 {
            let query = ListQuery { pid: None, top };
            let response =
                cache.response(&published, ("sites", query), |_| Some(json!({ "top": top })));
            assert!(response.unwrap().len() > 10);
        }
        assert_eq!(cache.responses.len(), MAX_CACHED_RESPONSES);
        let long = "x".repeat(MAX_CACHED_BYTES / 3);
        let mut cache = ResponseCache::default();
        for top in 1..=9 {
            let query = ListQuery { pid: None, top };
            cache.response(&published, ("sites", query), |_| Some(json!({ "long": long })));
        }
        assert_eq!(cache.responses.len(), 2);
    }
}
