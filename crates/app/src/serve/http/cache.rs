//! Answers, made once for each snapshot: many that ask cost no more than one. They hold the paths that the
//! snapshot has, see [`Cache::redacted`].

use std::collections::HashMap;
use std::sync::Arc;

use engine::ids::Pid;
use engine::snapshot::{SiteProcess, Snapshot};
use formats::export::{hide_directories, json, openmetrics};
use hyper::body::Bytes;
use serde_json::Value;

use super::api;
use super::query::Query;
use crate::serve::{Published, onward};

/// Sites of each process in the API: those of all processes are listed whole.
const SITES_OF_EACH: usize = 10;

/// Answers that are kept, and the bytes of all of them: a client can ask for very many.
const ANSWERS: usize = 128;
const ANSWERS_BYTES: usize = 16 << 20;

/// What was made of the newest snapshot.
#[derive(Default)]
pub(super) struct Cache {
    sequence: u64,
    /// The same without directories of programs' files.
    redacted: Option<Arc<Published>>,
    metrics: Option<Bytes>,
    report: Option<Arc<Value>>,
    snapshot: Option<Bytes>,
    profile: Option<Bytes>,
    /// Of the API, by path and query.
    answers: HashMap<(Box<str>, Query), Bytes>,
    answers_bytes: usize,
}

impl Cache {
    /// Forgets what is older.
    fn turn_to(&mut self, published: &Published) {
        if self.sequence != published.sequence {
            *self = Self { sequence: published.sequence, ..Self::default() };
        }
    }

    /// What was published, without directories of programs' files.
    pub(super) fn redacted(&mut self, published: &Published) -> Arc<Published> {
        self.turn_to(published);
        let make = || {
            let mut snapshot = published.snapshot.clone();
            hide_directories(&mut snapshot);
            let (names, figures) = (Arc::clone(&published.names), published.figures.clone());
            let (sequence, own) = (published.sequence, published.own.clone());
            Arc::new(Published { sequence, snapshot, names, figures, own })
        };
        Arc::clone(self.redacted.get_or_insert_with(make))
    }

    /// The figures as OpenMetrics.
    pub(super) fn metrics(&mut self, published: &Published) -> Option<Bytes> {
        self.turn_to(published);
        if self.metrics.is_none() {
            let figures = Arc::new(published.figures.clone());
            self.metrics = openmetrics::encode(figures).ok().map(Bytes::from);
        }
        self.metrics.clone()
    }

    /// The snapshot as `trace --json` tells it, with the version of the API.
    pub(super) fn report(&mut self, published: &Published) -> Option<Arc<Value>> {
        self.turn_to(published);
        if self.report.is_none() {
            let mut snapshot = published.snapshot.clone();
            for process in &mut snapshot.processes {
                process.sites.truncate(SITES_OF_EACH);
            }
            let mut report = json::value(&snapshot, &published.names).ok()?;
            if let Some(fields) = report.as_object_mut() {
                fields.insert("api".into(), api::VERSION.into());
            }
            self.report = Some(Arc::new(report));
        }
        self.report.clone()
    }

    /// What one process holds, by where it came from. A place that several processes run has the figures of
    /// all of them in the report; these are of the one.
    pub(super) fn sites_of(published: &Published, pid: u32) -> Option<Value> {
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
        json::value(&snapshot, &published.names).ok()
    }

    /// The same as bytes.
    pub(super) fn snapshot(&mut self, published: &Published) -> Option<Bytes> {
        let report = self.report(published)?;
        if self.snapshot.is_none() {
            self.snapshot = Some(report.to_string().into());
        }
        self.snapshot.clone()
    }

    /// An answer of the API, made once for a path and query where there is room.
    pub(super) fn answer(
        &mut self,
        published: &Published,
        (path, query): (&str, Query),
        make: impl FnOnce(&mut Self) -> Option<Value>,
    ) -> Option<Bytes> {
        self.turn_to(published);
        let key = (Box::from(path), query);
        if let Some(known) = self.answers.get(&key) {
            return Some(known.clone());
        }
        let made = Bytes::from(api::envelope(published, make(self)?).to_string());
        let bytes = self.answers_bytes.saturating_add(made.len());
        if self.answers.len() < ANSWERS && bytes <= ANSWERS_BYTES {
            self.answers.insert(key, made.clone());
            self.answers_bytes = bytes;
        }
        Some(made)
    }

    /// Memory in use by call stack.
    pub(super) fn profile(&mut self, published: &Published) -> Bytes {
        self.turn_to(published);
        let make = || Bytes::from(onward::profile::pprof(published, true));
        self.profile.get_or_insert_with(make).clone()
    }
}

#[cfg(test)]
mod tests {
    use engine::metrics::Figures;
    use engine::snapshot::Snapshot;
    use serde_json::json;

    use super::*;

    fn published(sequence: u64) -> Published {
        onward::published(sequence, Snapshot::default(), Figures::default())
    }

    #[test]
    fn an_answer_is_made_once_for_each_snapshot() {
        let mut cache = Cache::default();
        let mut made = 0;
        for (sequence, path, query, expected) in [
            (1, "sites", Query::ALL, 1),
            (1, "sites", Query::ALL, 1),
            (1, "sites", Query { pid: Some(1), ..Query::ALL }, 2),
            (1, "gpus", Query::ALL, 3),
            (1, "sites", Query { pid: Some(1), ..Query::ALL }, 3),
            (2, "sites", Query::ALL, 4),
            (2, "sites", Query::ALL, 4),
        ] {
            let answer = cache.answer(&published(sequence), (path, query), |_| {
                made += 1;
                Some(json!({ "made": made }))
            });
            let answer: Value = serde_json::from_slice(&answer.unwrap()).unwrap();
            assert_eq!((made, &answer["api"]), (expected, &"v1".into()), "{path} {query:?}");
        }
    }

    #[test]
    fn no_client_can_fill_the_memory_with_answers() {
        let (mut cache, published) = (Cache::default(), published(1));
        for top in 1..=1000 {
            let query = Query { pid: None, top };
            let answer =
                cache.answer(&published, ("sites", query), |_| Some(json!({ "top": top })));
            assert!(answer.unwrap().len() > 10);
        }
        assert_eq!(cache.answers.len(), ANSWERS);
        let long = "x".repeat(ANSWERS_BYTES / 3);
        let mut cache = Cache::default();
        for top in 1..=9 {
            let query = Query { pid: None, top };
            cache.answer(&published, ("sites", query), |_| Some(json!({ "long": long })));
        }
        assert_eq!(cache.answers.len(), 2);
    }
}
