//! `doctor --bundle`: a redacted archive for bug reports.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use engine::model::Timestamp;
use flate2::Compression;
use flate2::write::GzEncoder;
use formats::WallClock;
use tar::{Builder, Header};

use super::checks::Checks;
use super::redact::Redactor;
use super::text;
use crate::io::atomic_file::AtomicFile;
use crate::io::output;

/// Files that describe the host; they contain no secrets.
const HOST_FILES: &[&str] = &[
    "/etc/os-release",
    "/proc/driver/nvidia/version",
    "/proc/self/limits",
    "/proc/self/status",
    "/proc/self/uid_map",
    "/proc/self/attr/current",
    "/sys/kernel/security/lsm",
    "/sys/kernel/security/lockdown",
];

/// Kernel settings, below `/proc/sys`.
const SETTINGS: &[&str] = &[
    "kernel/osrelease",
    "kernel/perf_event_paranoid",
    "kernel/unprivileged_bpf_disabled",
    "kernel/yama/ptrace_scope",
    "kernel/kptr_restrict",
    "net/core/bpf_jit_enable",
    "net/core/bpf_jit_harden",
    "user/max_user_namespaces",
];

/// Prefixes of kernel build options that probes depend on.
const BUILD_OPTIONS: &[&str] = &[
    "CONFIG_BPF",
    "CONFIG_UPROBE",
    "CONFIG_KPROBE",
    "CONFIG_DEBUG_INFO_BTF",
    "CONFIG_PERF_EVENTS",
    "CONFIG_FTRACE",
    "CONFIG_SECURITY_LOCKDOWN",
    "CONFIG_PREEMPT",
];

/// Most bytes of a file in the bundle.
const MAX_FILE_BYTES: usize = 1 << 20;

/// Writes the bundle. It contains nothing but the listed files, and all text is redacted.
pub(super) fn write(checks: &Checks, file: Option<&Path>, force: bool) -> Result<()> {
    let path = file.map_or_else(default_path, Path::to_owned);
    let archive = GzEncoder::new(AtomicFile::create(&path, force)?, Compression::default());
    let mut builder = Builder::new(archive);
    for (name, content) in contents(checks, &Redactor::read())? {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, format!("vramscope-doctor/{name}"), content.as_bytes())?;
    }
    builder.into_inner()?.finish()?.commit()?;
    output::log(&format!(
        "wrote {}: check its files before you attach them to a bug report",
        path.display()
    ));
    Ok(())
}

fn default_path() -> PathBuf {
    let clock = output::clock(WallClock::now(Timestamp(0)));
    format!("vramscope-doctor-{}.tar.gz", clock.compact(Timestamp(0))).into()
}

/// Returns the files of the bundle, redacted.
fn contents(checks: &Checks, redactor: &Redactor) -> Result<Vec<(String, String)>> {
    let mut report = Vec::new();
    text::write(checks, &mut report)?;
    let mut files = vec![
        ("doctor.txt".to_owned(), String::from_utf8_lossy(&report).into_owned()),
        ("doctor.json".to_owned(), format!("{}\n", serde_json::to_string_pretty(checks)?)),
        ("settings.txt".to_owned(), settings()),
        ("kernel-config.txt".to_owned(), build_options(&checks.kernel.release)),
    ];
    for path in HOST_FILES {
        if let Some(text) = read(path) {
            files.push((path.trim_start_matches('/').replace('/', "-"), text));
        }
    }
    for (_, text) in &mut files {
        *text = redactor.redact(text);
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let readme = format!(
        "Output of `vramscope doctor --bundle`, version {}.\n\nNames of users and of the host, ids \
         of machines, containers and GPUs, and paths outside of system directories were removed.\n\
         \nFiles: {}\n",
        checks.version,
        names.join(", ")
    );
    files.insert(0, ("README.txt".to_owned(), readme));
    Ok(files)
}

/// Reads a text file, up to the limit.
fn read(path: &str) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_FILE_BYTES)]).into_owned();
    Some(text.trim_matches('\0').to_owned())
}

/// Returns the kernel settings as `sysctl` prints them.
fn settings() -> String {
    SETTINGS.iter().fold(String::new(), |mut text, name| {
        let value = read(&format!("/proc/sys/{name}"));
        let value = value.as_deref().map_or("not available", str::trim);
        let _ = writeln!(text, "{} = {value}", name.replace('/', "."));
        text
    })
}

/// Returns the build options of the kernel that probes depend on.
fn build_options(release: &str) -> String {
    let Some(config) = read(&format!("/boot/config-{release}")) else {
        return format!("/boot/config-{release} cannot be read\n");
    };
    let wanted = |line: &&str| BUILD_OPTIONS.iter().any(|option| line.contains(option));
    config.lines().filter(wanted).fold(String::new(), |text, line| text + line + "\n")
}
