//! Finds processes that have a GPU open without appearing in the driver's list: zombies, forked
//! children, processes of other containers.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use engine::model::container::{Container, Pod};
use engine::model::device_holder::DeviceHolder;
use engine::model::ids::{GpuId, Pid};
use engine::model::units::Nanos;

use crate::clock;
use crate::containers::cgroup;

/// Prefix of the device files.
const DEVICE_PREFIX: &str = "/dev/nvidia";

/// Replaces the prefix of the device files, for tests.
const PREFIX_VARIABLE: &str = "VRAMSCOPE_TEST_DEVICE_PREFIX";

/// Length of a clock tick in `/proc`, in nanoseconds.
const TICK: u64 = 10_000_000;

/// Limits of processes that are listed, of file descriptors that are read per process, and of
/// threads of a zombie.
const MAX_HOLDERS: usize = 256;
const MAX_DESCRIPTORS: usize = 65_536;
const MAX_THREADS: usize = 64;

/// Returns the processes that have a device file open and are not in `listed`, oldest first. The
/// files of processes of other users can be read by root only.
#[must_use]
pub fn unlisted_holders(listed: &HashSet<Pid>) -> Vec<DeviceHolder> {
    let prefix = std::env::var(PREFIX_VARIABLE).unwrap_or_else(|_| DEVICE_PREFIX.to_owned());
    let own = Pid(std::process::id());
    let mut holders = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let pid = Pid(pid);
        if pid == own || listed.contains(&pid) || holders.len() >= MAX_HOLDERS {
            continue;
        }
        holders.extend(holder(pid, &entry.path(), &prefix, listed));
    }
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.age), holder.pid));
    holders
}

/// Returns a process if it has a device file open.
fn holder(pid: Pid, dir: &Path, prefix: &str, listed: &HashSet<Pid>) -> Option<DeviceHolder> {
    let files = device_files(dir, prefix)?;
    let stat = Stat::read(dir)?;
    let parent_name = |parent: Pid| Some((parent, Stat::read(&proc_dir(parent))?.name));
    let numbers = files.iter().filter_map(|file| file.parse().ok());
    let mut gpus: Vec<GpuId> = numbers.map(GpuId).collect();
    gpus.sort_unstable();
    gpus.dedup();
    Some(DeviceHolder {
        pid,
        name: stat.name,
        uid: fs::metadata(dir).ok()?.uid(),
        gpus,
        has_cuda: files.iter().any(|file| file == "-uvm"),
        is_zombie: stat.is_zombie,
        parent: parent_name(stat.parent),
        parent_is_listed: listed.contains(&stat.parent),
        age: Nanos(clock::boot().saturating_sub(stat.start)),
        container: container(dir),
    })
}

fn proc_dir(pid: Pid) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Returns the names of the open device files after their prefix, such as `0`, `ctl` and `-uvm`;
/// `None` without any. The files of a zombie are those of its other threads.
fn device_files(dir: &Path, prefix: &str) -> Option<Vec<String>> {
    let mut files = open_files(&dir.join("fd"), prefix);
    if files.is_empty() && Stat::read(dir)?.is_zombie {
        let threads = fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
        for thread in threads.take(MAX_THREADS) {
            files.extend(open_files(&thread.path().join("fd"), prefix));
        }
    }
    (!files.is_empty()).then_some(files)
}

fn open_files(dir: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().take(MAX_DESCRIPTORS);
    let device = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let rest = target.to_str()?.strip_prefix(prefix)?;
        // Not files of programs below a directory of that name.
        (!rest.contains('/')).then(|| rest.to_owned())
    };
    entries.filter_map(device).collect()
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    name: Box<str>,
    is_zombie: bool,
    parent: Pid,
    /// Start time in nanoseconds since boot.
    start: u64,
}

impl Stat {
    fn read(dir: &Path) -> Option<Self> {
        let text = fs::read(dir.join("stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name may contain anything, so fields are counted from its end.
        let (head, rest) = text.rsplit_once(") ")?;
        let (_, name) = head.split_once('(')?;
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        let parent = Pid(fields.next()?.parse().ok()?);
        let ticks: u64 = fields.nth(17)?.parse().ok()?;
        let start = ticks.saturating_mul(TICK);
        Some(Self { name: name.into(), is_zombie: state == "Z", parent, start })
    }
}

fn container(dir: &Path) -> Option<Container> {
    let found = cgroup::parse(&fs::read_to_string(dir.join("cgroup")).ok()?)?;
    let pod = |uid| Pod { uid, name: None, namespace: None, container: None };
    Some(Container {
        id: found.id,
        runtime: found.runtime,
        pod: found.pod.map(pod),
        container_pid: None,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a process that keeps a file open.
    fn open(path: &Path) -> Child {
        Command::new("sleep")
            .arg("60")
            .stdin(fs::File::open(path).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[test]
    fn process_with_an_open_device_is_found_with_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("nvidia");
        let prefix = prefix.to_str().unwrap();
        for name in ["3", "-uvm", "5/x"] {
            let path = PathBuf::from(format!("{prefix}{name}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let mut children =
            ["3", "-uvm", "5/x"].map(|name| open(Path::new(&format!("{prefix}{name}"))));
        let pids = children.each_ref().map(|child| Pid(child.id()));
        let own = HashSet::from([Pid(std::process::id())]);
        let found = pids.map(|pid| holder(pid, &proc_dir(pid), prefix, &own));
        children.iter_mut().for_each(|child| {
            child.kill().unwrap();
            child.wait().unwrap();
        });
        let [Some(gpu), Some(control), None] = found else { panic!("{found:?}") };
        assert_eq!((&*gpu.name, &gpu.gpus[..], gpu.is_zombie), ("sleep", &[GpuId(3)][..], false));
        assert_eq!((&control.gpus[..], control.has_cuda, gpu.has_cuda), (&[][..], true, false));
        assert_eq!(gpu.parent.as_ref().map(|(pid, _)| pid.0), Some(std::process::id()));
        assert!(gpu.parent_is_listed && gpu.age < Nanos(60_000_000_000));
    }
}
