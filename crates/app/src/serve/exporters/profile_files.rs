//! Profiles as a series of files.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Result;

use super::directory::{PartialFile, Retention, prune, sweep};
use super::failure_log::FailureLog;
use super::pprof;
use super::ticker::Ticker;
use crate::serve::config::exporters::ProfilesConfig;
use crate::serve::{AgentState, AgentThread, PublishedSnapshot};

const NAME: &str = "profiles";

/// Prefix and suffix of file names.
const FILE_PREFIX: &str = "vramscope-";
const FILE_SUFFIX: &str = ".pb.gz";

/// Starts the worker.
pub(super) fn start(
    shared: &Arc<AgentState>,
    config: &ProfilesConfig,
    host: &str,
) -> Result<AgentThread> {
    let retention = config.retention_rule();
    let writer = ProfileExporter {
        dir: retention.dir.to_owned(),
        host: host.chars().map(safe).take(64).collect(),
        limits: Retention { age: retention.age, size: retention.size },
        paths: shared.config.exporters.show_paths,
    };
    let interval = config.interval.0;
    AgentThread::spawn("export-profiles", shared, move |shared| {
        let is_own = |name: &str| writer.is_own_file(name);
        sweep(&writer.dir, &is_own);
        let mut failure_log =
            FailureLog::new(format!("write profiles to {}", writer.dir.display()));
        let mut ticker = Ticker::new(interval);
        while let Some(tick) = ticker.next(&shared.feed) {
            shared.exports.count(NAME, "dropped", tick.missed);
            match writer.write(&tick.published) {
                Ok(()) => {
                    shared.exports.count(NAME, "sent", 1);
                    failure_log.report_success();
                }
                Err(error) => {
                    shared.exports.count(NAME, "failed", 1);
                    failure_log.report_failure(&error.to_string());
                }
            }
            prune(std::slice::from_ref(&writer.dir), &is_own, writer.limits, SystemTime::now());
        }
        Ok(())
    })
}

struct ProfileExporter {
    dir: PathBuf,
    /// Host name as used in file names.
    host: String,
    limits: Retention,
    paths: bool,
}

impl ProfileExporter {
    fn write(&self, published: &PublishedSnapshot) -> io::Result<()> {
        let nanos = published.context.clock.nanos(published.snapshot.at);
        let time = jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default();
        let host = &self.host;
        let name =
            format!("{FILE_PREFIX}{host}-{}{FILE_SUFFIX}", time.strftime("%Y%m%dT%H%M%S%.3fZ"));
        let mut file = PartialFile::begin(self.dir.join(name))?;
        file.write_all(&pprof::pprof(published, self.paths))?;
        file.finish()
    }

    /// Whether a file was written by this host. Others may write to the same directory, and the
    /// name of one may begin with this host's name, so a time must follow.
    fn is_own_file(&self, name: &str) -> bool {
        let rest = name.strip_prefix(FILE_PREFIX).and_then(|rest| rest.strip_suffix(FILE_SUFFIX));
        let rest = rest.and_then(|rest| rest.strip_prefix(&*self.host));
        rest.and_then(|rest| rest.strip_prefix('-')).is_some_and(is_time)
    }
}

/// `20260704T101500.123Z`, or the same without a fraction.
fn is_time(text: &str) -> bool {
    let digits = |part: &str, count: usize| {
        part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let Some((day, rest)) = text.strip_suffix('Z').and_then(|text| text.split_once('T')) else {
        return false;
    };
    let (time, fraction) = rest.split_once('.').unwrap_or((rest, "000"));
    digits(day, 8) && digits(time, 6) && digits(fraction, 3)
}

/// Replaces characters that are special in paths.
const fn safe(c: char) -> char {
    if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::model::units::Bytes;

    use super::*;

    #[test]
    fn only_files_of_this_host_are_own() {
        let limits = Retention { age: Duration::from_secs(60), size: Bytes(1) };
        let writer = ProfileExporter { dir: "/".into(), host: "gpu".into(), limits, paths: false };
        for name in ["20260704T101500.123Z", "20260704T101500Z"] {
            assert!(writer.is_own_file(&format!("vramscope-gpu-{name}.pb.gz")), "{name}");
        }
        for name in [
            "vramscope-gpu-2-20260704T101500.123Z.pb.gz",
            "vramscope-gpu2-20260704T101500.123Z.pb.gz",
            "vramscope-other-20260704T101500.123Z.pb.gz",
            "vramscope-gpu-before-the-change.pb.gz",
            "vramscope-gpu-20260704T101500.123Z.pb.gz.old",
            "vramscope-gpu-20260704T1015é.pb.gz",
            "vramscope-gpu-.pb.gz",
            "vramscope-.pb.gz",
        ] {
            assert!(!writer.is_own_file(name), "{name}");
        }
    }
}
