//! Attaches the BPF programs to functions of a library.

use std::path::Path;
use std::thread;

use engine::model::ids::Pid;
use libbpf_rs::{Link, UprobeMultiOpts, UprobeOpts};

use super::super::load::bpf_object::{LoadedObject, ProbeSet, programs};
use crate::error::Error;
use crate::plan::AttachMode;

/// A probe point: offset in the file and attach cookie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbePoint {
    pub(crate) offset: u64,
    pub(crate) cookie: u64,
}

/// Attached probes; dropping it detaches them.
pub(crate) struct AttachedProbes {
    links: Vec<Link>,
}

/// Number of threads that detach single links, and of links that are not worth a thread.
const DETACH_THREADS: usize = 32;
const FEW_LINKS: usize = 4;

impl Drop for AttachedProbes {
    /// Detaches many links from several threads: each one waits for a grace period of the kernel,
    /// and those of different threads overlap.
    fn drop(&mut self) {
        let per_thread = self.links.len().div_ceil(DETACH_THREADS).max(FEW_LINKS);
        thread::scope(|scope| {
            while self.links.len() > per_thread {
                let part = self.links.split_off(self.links.len() - per_thread);
                // Without a thread they are detached here.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(part));
            }
            self.links.clear();
        });
    }
}

/// The pid argument that means every process.
const ALL_PROCESSES: i32 = -1;

/// Attaches to probe points of a file, for one process or for all.
pub(crate) fn attach(
    loaded: &LoadedObject,
    file: &Path,
    name: &Path,
    points: &[ProbePoint],
    probe_set: ProbeSet,
    only: Option<Pid>,
) -> Result<AttachedProbes, Error> {
    let attach_mode = loaded.config.attach_mode;
    let pid = only.map_or(ALL_PROCESSES, |pid| pid.0.cast_signed());
    let failed = |error: libbpf_rs::Error| Error::Attach {
        path: name.to_owned(),
        attach_mode,
        cause: error.into(),
    };
    let (enter, leave) = programs(attach_mode, probe_set);
    let mut attachment = AttachedProbes { links: Vec::new() };
    if points.is_empty() {
        return Ok(attachment);
    }
    match attach_mode {
        AttachMode::Session | AttachMode::Multi => {
            for (program, retprobe) in [(leave, true), (Some(enter), false)] {
                let Some(program) = program else { continue };
                let options = UprobeMultiOpts {
                    offsets: points.iter().map(|point| point.offset as usize).collect(),
                    cookies: points.iter().map(|point| point.cookie).collect(),
                    retprobe,
                    session: attach_mode == AttachMode::Session && probe_set.is_session(),
                    ..UprobeMultiOpts::default()
                };
                let link = loaded
                    .program(program)?
                    .attach_uprobe_multi_with_opts(pid, file, "", options)
                    .map_err(failed)?;
                attachment.links.push(link);
            }
        }
        AttachMode::Single => {
            for point in points {
                attachment.links.extend(pair(loaded, file, *point, probe_set, &failed)?);
            }
        }
    }
    Ok(attachment)
}

/// Attaches a single probe to each side of one function. The return side is attached first, so that
/// every entry has its return.
fn pair(
    loaded: &LoadedObject,
    file: &Path,
    point: ProbePoint,
    probe_set: ProbeSet,
    failed: &impl Fn(libbpf_rs::Error) -> Error,
) -> Result<Vec<Link>, Error> {
    let (enter, leave) = programs(loaded.config.attach_mode, probe_set);
    let mut links = Vec::new();
    for (program, retprobe) in [(leave, true), (Some(enter), false)] {
        let Some(program) = program else { continue };
        let options = UprobeOpts { cookie: point.cookie, retprobe, ..UprobeOpts::default() };
        let link = loaded
            .program(program)?
            .attach_uprobe_with_opts(ALL_PROCESSES, file, point.offset as usize, options)
            .map_err(failed)?;
        links.push(link);
    }
    Ok(links)
}
