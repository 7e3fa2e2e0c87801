//! Tables as files, for databases that read those of many hosts as one.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use engine::units::Bytes;
use formats::export::parquet::{LiveTable, Part as Rows, Tick, day_of, host_folder, part_path};

use super::beat::Beat;
use super::folder::{Limits, Unfinished, prune, sweep};
use super::voice::Voice;
use crate::serve::config::onward::Parquet;
use crate::serve::{Part, Published, Shared};

const NAME: &str = "parquet";

/// Starts the part.
pub(super) fn start(shared: &Arc<Shared>, settings: &Parquet, host: &str) -> Result<Part> {
    let mut writer = Writer::new(settings, host, shared.config.exporters.show_paths);
    let interval = settings.interval.0;
    Part::spawn("export-parquet", shared, move |shared| {
        writer.clean();
        let what = format!("write tables to {}", writer.folder.display());
        let mut voice = Voice::new(what);
        let mut beat = Beat::new(interval);
        while let Some(turn) = beat.next(&shared.feed) {
            shared.onward.count(NAME, "dropped", turn.missed);
            let mut done = writer.tick(&turn.published);
            if turn.is_last {
                done.add(writer.finish());
            }
            tell(shared, &mut voice, &done);
        }
        tell(shared, &mut voice, &writer.finish());
        Ok(())
    })
}

/// Rows wait in memory for a while: only a file that is whole shows that writing works.
fn tell(shared: &Shared, voice: &mut Voice, done: &Done) {
    shared.onward.count(NAME, "sent", done.files);
    shared.onward.count(NAME, "failed", done.failures.len() as u64);
    match done.failures.first() {
        Some(error) => voice.failed(&error.to_string()),
        None if done.files > 0 => voice.works(),
        None => {}
    }
}

/// In the folders of this host, whatever is called so.
fn is_ours(name: &str) -> bool {
    name.starts_with("part-") && name.ends_with(".parquet")
}

/// What came of something.
#[derive(Default)]
struct Done {
    /// Files that are whole.
    files: u64,
    failures: Vec<io::Error>,
}

impl Done {
    fn add(&mut self, more: Self) {
        self.files += more.files;
        self.failures.extend(more.failures);
    }
}

struct Writer {
    folder: PathBuf,
    host: String,
    roll: Duration,
    roll_size: Bytes,
    limits: Limits,
    paths: bool,
    open: [Option<Open>; LiveTable::ALL.len()],
}

/// A file that rows are added to.
struct Open {
    rows: Rows<Unfinished>,
    begun: Instant,
    day: i64,
}

impl Writer {
    fn new(settings: &Parquet, host: &str, paths: bool) -> Self {
        let keep = settings.keep();
        Self {
            folder: keep.folder.to_owned(),
            host: host.to_owned(),
            roll: settings.rotate_interval.0,
            roll_size: settings.rotate_size.0,
            limits: Limits { age: keep.age, size: keep.size },
            paths,
            open: Default::default(),
        }
    }

    /// The folders of this host: those of others are theirs.
    fn own(&self) -> Vec<PathBuf> {
        let folder = |table| self.folder.join(host_folder(table, &self.host));
        LiveTable::ALL.into_iter().map(folder).collect()
    }

    /// Removes what is old, and what an agent left that was killed.
    fn clean(&self) {
        for folder in self.own() {
            sweep(&folder, &is_ours);
        }
        self.prune();
    }

    fn prune(&self) {
        prune(&self.own(), &is_ours, self.limits, SystemTime::now());
    }

    /// Adds the rows of a moment to each table. A table that fails loses its file, and begins another
    /// one with the next moment.
    fn tick(&mut self, published: &Published) -> Done {
        let Published { snapshot, figures, names, .. } = published;
        let tick = Tick { snapshot, figures, names, paths: self.paths };
        let now = names.clock.nanos(snapshot.at);
        let mut done = self.roll(now);
        for (place, table) in LiveTable::ALL.into_iter().enumerate() {
            let open = self.open.get_mut(place).and_then(Option::take);
            match self.add(table, open, now, &tick) {
                Ok(open) => {
                    if let Some(slot) = self.open.get_mut(place) {
                        *slot = Some(open);
                    }
                }
                Err(error) => done.failures.push(error),
            }
        }
        done
    }

    fn add(
        &self,
        table: LiveTable,
        open: Option<Open>,
        now: i64,
        tick: &Tick<'_>,
    ) -> io::Result<Open> {
        let mut open = match open {
            Some(open) => open,
            None => self.begin(table, now, tick)?,
        };
        open.rows.add(tick)?;
        Ok(open)
    }

    fn begin(&self, table: LiveTable, now: i64, tick: &Tick<'_>) -> io::Result<Open> {
        let paths = (0..).map(|number| self.folder.join(part_path(table, &self.host, now, number)));
        let path = paths.into_iter().find(|path| !path.exists());
        let file = Unfinished::begin(path.ok_or(io::ErrorKind::AlreadyExists)?)?;
        let rows = Rows::new(table, file, tick)?;
        Ok(Open { rows, begun: Instant::now(), day: day_of(now) })
    }

    /// Finishes files that are long or big enough, or of yesterday.
    fn roll(&mut self, now: i64) -> Done {
        let (time, size) = (self.roll, self.roll_size);
        let is_due = |open: &Open| {
            let is_big = open.rows.bytes() >= size.0;
            open.begun.elapsed() >= time || is_big || open.day != day_of(now)
        };
        self.close(is_due)
    }

    fn finish(&mut self) -> Done {
        self.close(|_| true)
    }

    fn close(&mut self, is_due: impl Fn(&Open) -> bool) -> Done {
        let due: Vec<Open> =
            self.open.iter_mut().filter_map(|open| open.take_if(|open| is_due(open))).collect();
        let mut done = Done::default();
        if due.is_empty() {
            return done;
        }
        // A file without a row would only be in the way.
        for open in due.into_iter().filter(|open| open.rows.rows() > 0) {
            match open.rows.finish().and_then(Unfinished::finish) {
                Ok(()) => done.files += 1,
                Err(error) => done.failures.push(error),
            }
        }
        self.prune();
        done
    }
}
