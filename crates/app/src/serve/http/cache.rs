//! Answers, made once for each snapshot: many that ask cost no more than one.

use std::sync::Arc;

use formats::export::{json, openmetrics};
use hyper::body::Bytes;
use serde_json::Value;

use super::api;
use crate::serve::{Published, onward};

/// Sites of each process in the API: those of all processes are listed whole.
const SITES_OF_EACH: usize = 10;

/// What was made of the newest snapshot.
#[derive(Default)]
pub(super) struct Cache {
    sequence: u64,
    metrics: Option<Bytes>,
    report: Option<Arc<Value>>,
    snapshot: Option<Bytes>,
    profile: Option<Bytes>,
}

impl Cache {
    /// Forgets what is older.
    fn turn_to(&mut self, published: &Published) {
        if self.sequence != published.sequence {
            *self = Self { sequence: published.sequence, ..Self::default() };
        }
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
    pub(super) fn report(&mut self, published: &Published, paths: bool) -> Option<Arc<Value>> {
        self.turn_to(published);
        if self.report.is_none() {
            let mut snapshot = published.snapshot.clone();
            for process in &mut snapshot.processes {
                process.sites.truncate(SITES_OF_EACH);
            }
            let mut report = json::value(&snapshot, &published.names).ok()?;
            if !paths {
                api::hide_folders(&mut report);
            }
            if let Some(fields) = report.as_object_mut() {
                fields.insert("api".into(), api::VERSION.into());
            }
            self.report = Some(Arc::new(report));
        }
        self.report.clone()
    }

    /// The same as bytes.
    pub(super) fn snapshot(&mut self, published: &Published, paths: bool) -> Option<Bytes> {
        let report = self.report(published, paths)?;
        if self.snapshot.is_none() {
            self.snapshot = Some(report.to_string().into());
        }
        self.snapshot.clone()
    }

    /// Memory in use by call stack.
    pub(super) fn profile(&mut self, published: &Published, paths: bool) -> Bytes {
        self.turn_to(published);
        let make = || Bytes::from(onward::profile::pprof(published, paths));
        self.profile.get_or_insert_with(make).clone()
    }
}
