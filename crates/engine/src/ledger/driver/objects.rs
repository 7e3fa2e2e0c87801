//! CUDA objects that a process created and did not destroy, by kind and site. They are not memory
//! and do not affect memory totals.
//!
//! Handles are used again: see [`super::reuse`].

use crate::model::{ContextId, EndReason, Event, ObjectCall, ObjectKind, SiteId, Timestamp};
use crate::snapshot::ObjectView;

use super::super::process::Process;
use super::super::sites::table::{ResourceKind, SiteTable};
use super::overhead::MAX_SEARCHED_OBJECTS;
use super::reuse::{Counts, Owners, existed};

/// Limit of objects tracked per process; more are only counted.
const MAX_LIVE_OBJECTS: usize = 1 << 20;

type ObjectKey = (ObjectKind, u64);

/// A live object.
#[derive(Clone, Copy, Debug)]
struct LiveObject {
    context: Option<ContextId>,
    site: Option<SiteId>,
    /// Whether it ends with its context, but the context is unknown.
    contextless: bool,
    /// Whether a context has ended since that may have been its own.
    doubtful: bool,
    /// Size of the image that it was loaded from; 0 if unknown.
    image: u64,
}

/// CUDA objects of one process.
#[derive(Debug)]
pub(crate) struct ObjectTable {
    /// Limit of tracked objects, see [`MAX_LIVE_OBJECTS`].
    room: usize,
    live: Owners<ObjectKey, LiveObject>,
    counts: [ObjectView; ObjectKind::ALL.len()],
    /// Number of live objects per context, so that the end of a context without objects costs
    /// nothing.
    by_context: Counts<ContextId>,
    /// Number of live objects whose context is unknown and that are not in doubt.
    contextless: u64,
}

impl Default for ObjectTable {
    fn default() -> Self {
        Self::with_room(MAX_LIVE_OBJECTS)
    }
}

impl ObjectTable {
    fn with_room(room: usize) -> Self {
        Self {
            room,
            live: Owners::default(),
            counts: ObjectKind::ALL.map(ObjectView::none),
            by_context: Counts::default(),
            contextless: 0,
        }
    }

    fn count(&mut self, kind: ObjectKind) -> &mut ObjectView {
        &mut self.counts[kind.index()]
    }

    fn create(&mut self, key: ObjectKey, new: LiveObject, at: Timestamp, sites: &mut SiteTable) {
        if self.live.get(key).is_some() {
            self.end(key, EndReason::Replaced, at, sites);
            self.live.expect_end(key, 1);
        }
        let room = self.live.len() < self.room;
        let counts = self.count(key.0);
        counts.created += 1;
        counts.live += 1;
        counts.peak = counts.peak.max(counts.live);
        if !room {
            counts.untracked += 1;
            return;
        }
        self.live.insert(key, at, new);
        if let Some(context) = new.context {
            self.by_context.add(context, 1);
        }
        self.contextless += u64::from(new.contextless);
        sites.begin(new.site, ResourceKind::Object(key.0), 1, at);
    }

    fn destroy(
        &mut self,
        key: ObjectKey,
        entered: Timestamp,
        at: Timestamp,
        sites: &mut SiteTable,
    ) {
        let is_live = self.live.is_about(key, entered);
        if is_live {
            self.end(key, EndReason::Freed, at, sites);
        }
        let is_known = is_live || self.live.match_pending(key);
        let counts = self.count(key.0);
        if is_known {
            counts.destroyed += 1;
        } else if counts.untracked > 0 {
            // The handle is unknown; it most likely belongs to an untracked object.
            counts.untracked -= 1;
            counts.live -= 1;
            counts.destroyed += 1;
        } else {
            counts.unknown_destroys += 1;
        }
    }

    /// Ends a tracked object; the only place where this happens.
    fn end(&mut self, key: ObjectKey, reason: EndReason, at: Timestamp, sites: &mut SiteTable) {
        let Some((created_at, gone)) = self.live.remove(key) else { return };
        let counts = self.count(key.0);
        counts.live -= 1;
        counts.released += u64::from(reason == EndReason::Released);
        self.contextless -= u64::from(gone.contextless && !gone.doubtful);
        if let Some(context) = gone.context {
            self.by_context.take(context);
        }
        sites.finish((gone.site, ResourceKind::Object(key.0)), 1, created_at, reason, at);
    }

    /// Ends all objects created in a context up to a given time.
    fn release(
        &mut self,
        context: ContextId,
        until: Timestamp,
        at: Timestamp,
        sites: &mut SiteTable,
    ) {
        if !self.by_context.contains(context) {
            return;
        }
        let all = self.live.iter();
        let own =
            all.filter(|(_, since, live)| live.context == Some(context) && existed(*since, until));
        let mut gone: Vec<_> = own.map(|(key, ..)| key).collect();
        // The order decides which site rows fit within the limit.
        gone.sort_unstable();
        for key in gone {
            self.end(key, EndReason::Released, at, sites);
        }
    }

    /// Puts all objects with an unknown context in doubt, because a context ended that may have
    /// been theirs. Returns how many were not in doubt before. Visits all objects if there are any.
    pub(crate) fn doubt_unknown_contexts(&mut self) -> u64 {
        if self.contextless > 0 {
            self.live.values_mut().for_each(|live| live.doubtful |= live.contextless);
        }
        std::mem::take(&mut self.contextless)
    }

    /// Number of objects of a kind that began, and of those that ended.
    pub(crate) fn began_and_ended(&self, kind: ObjectKind) -> (u64, u64) {
        let counts = &self.counts[kind.index()];
        (counts.created, counts.created.saturating_sub(counts.live))
    }

    /// Sets the size of the image of an object.
    fn set_image(&mut self, key: ObjectKey, bytes: u64) {
        if let Some(live) = self.live.get_mut(key) {
            live.image = bytes;
        }
    }

    /// Sites and images of the live objects of a kind that were created after the first time, up to the second.
    /// Empty if there are too many objects to search.
    pub(crate) fn created_in(
        &self,
        kind: ObjectKind,
        (after, until): (Timestamp, Timestamp),
    ) -> Vec<(Option<SiteId>, u64)> {
        if self.live.len() > MAX_SEARCHED_OBJECTS {
            return Vec::new();
        }
        let is_new = |created_at: Timestamp| created_at > after && created_at <= until;
        let all = self.live.iter();
        let own = all.filter(|((known, _), since, _)| *known == kind && is_new(*since));
        own.map(|(_, _, live)| (live.site, live.image)).collect()
    }

    /// Kinds with at least one call.
    pub(crate) fn views(&self) -> Vec<ObjectView> {
        let used = |view: &&ObjectView| view.created > 0 || view.unknown_destroys > 0;
        self.counts.iter().filter(used).copied().collect()
    }

    /// Tracked live objects that were created after a time.
    pub(crate) fn created_since(
        &self,
        begin: Timestamp,
    ) -> impl Iterator<Item = (ObjectKind, Option<SiteId>)> {
        let new = self.live.iter().filter(move |(_, created_at, _)| *created_at > begin);
        new.map(|((kind, _), _, live)| (kind, live.site))
    }
}

impl Process {
    /// Applies a create or destroy call.
    pub(crate) fn object(&mut self, event: &Event, call: ObjectCall) {
        match call {
            ObjectCall::Created { kind, handle, context, site } => {
                let context = context.filter(|id| id.0 != 0 && kind.ends_with_context());
                let contextless = context.is_none() && kind.ends_with_context();
                let new = LiveObject { context, site, contextless, doubtful: false, image: 0 };
                self.objects.create((kind, handle), new, event.time, &mut self.sites);
            }
            ObjectCall::Image { kind, handle, bytes } => {
                self.objects.set_image((kind, handle), bytes);
            }
            ObjectCall::Destroyed { kind, handle } => {
                self.objects.destroy((kind, handle), event.entry_time, event.time, &mut self.sites);
            }
        }
    }

    /// Ends all objects created in a context up to a given time, because the context ended.
    pub(crate) fn release_objects(&mut self, context: ContextId, until: Timestamp) {
        self.objects.release(context, until, self.call.1, &mut self.sites);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(handle: u64) -> (ObjectKey, LiveObject) {
        let (context, site) = (None, None);
        let new = LiveObject { context, site, contextless: true, doubtful: false, image: 0 };
        ((ObjectKind::Event, handle), new)
    }

    #[test]
    fn beyond_the_limit_objects_are_counted_and_not_kept() {
        let mut objects = ObjectTable::with_room(8);
        let mut sites = SiteTable::starting_at(Timestamp(0));
        let all = 8 + 5;
        for handle in 0..all {
            let (key, new) = event(handle);
            objects.create(key, new, Timestamp(handle), &mut sites);
        }
        let view = |objects: &ObjectTable| {
            let [view] = objects.views()[..] else { panic!("one kind") };
            (view.live, view.destroyed, view.untracked)
        };
        assert_eq!(view(&objects), (all, 0, 5));
        assert_eq!(sites.rows()[0].track.count, 8);
        for handle in 0..all {
            objects.destroy(event(handle).0, Timestamp(all), Timestamp(all), &mut sites);
        }
        assert_eq!(view(&objects), (0, all, 0));
        assert_eq!(sites.rows()[0].track.count, 0);
    }
}
