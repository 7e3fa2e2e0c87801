//! Profiles as files, one after the other.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Result;

use super::beat::Beat;
use super::folder::{Limits, Unfinished, prune, sweep};
use super::profile;
use super::voice::Voice;
use crate::serve::config::onward::Profiles;
use crate::serve::{Part, Published, Shared};

const NAME: &str = "profiles";

/// How names of files begin and end.
const BEGINS: &str = "vramscope-";
const ENDS: &str = ".pb.gz";

/// Starts the part.
pub(super) fn start(shared: &Arc<Shared>, settings: &Profiles, host: &str) -> Result<Part> {
    let keep = settings.keep();
    let writer = Writer {
        folder: keep.folder.to_owned(),
        host: host.to_owned(),
        limits: Limits { age: keep.age, size: keep.size },
        paths: shared.config.onward.show_paths,
    };
    let interval = settings.interval.0;
    Part::spawn("onward-files", shared, move |shared| {
        sweep(&writer.folder);
        let mut voice = Voice::new(format!("write profiles to {}", writer.folder.display()));
        let mut beat = Beat::new(interval);
        while let Some(turn) = beat.next(&shared.feed) {
            shared.onward.count(NAME, "dropped", turn.missed);
            match writer.write(&turn.published) {
                Ok(()) => {
                    shared.onward.count(NAME, "sent", 1);
                    voice.works();
                }
                Err(error) => {
                    shared.onward.count(NAME, "failed", 1);
                    voice.failed(&error.to_string());
                }
            }
            prune(
                std::slice::from_ref(&writer.folder),
                (BEGINS, ENDS),
                writer.limits,
                SystemTime::now(),
            );
        }
    })
}

struct Writer {
    folder: PathBuf,
    host: String,
    limits: Limits,
    paths: bool,
}

impl Writer {
    fn write(&self, published: &Published) -> io::Result<()> {
        let nanos = published.names.clock.nanos(published.snapshot.at);
        let time = jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default();
        let host: String = self.host.chars().map(safe).take(64).collect();
        let name = format!("{BEGINS}{host}-{}{ENDS}", time.strftime("%Y%m%dT%H%M%S%.3fZ"));
        let mut file = Unfinished::begin(self.folder.join(name))?;
        file.write_all(&profile::pprof(published, self.paths))?;
        file.finish()
    }
}

/// Letters that mean nothing in a path.
const fn safe(letter: char) -> char {
    if letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.') { letter } else { '_' }
}
