//! The checks of `doctor` and their results, as all its outputs show them.

use std::path::PathBuf;

use capture::files::Mapping;
use capture::gpus::{listed_processes, unlisted_holders};
use capture::hooks::HOOKS;
use capture::libraries::{DriverLibrary, installed, scan_all};
use capture::plan::host_info::HostInfo;
use capture::plan::restrictions::restrictions;
use capture::plan::{self, AttachMode, AttachPlan};
use capture::session::probe_host;
use engine::model::DeviceHolder;
use formats::report::advice::device_holder_sentence;
use formats::sanitize::sanitize;
use serde::Serialize;

/// Results of all checks; the JSON of `doctor`.
#[derive(Serialize)]
pub(super) struct Checks {
    pub(super) version: &'static str,
    /// Whether this host can trace.
    pub(super) works: bool,
    /// Why it cannot, and the next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) kernel: Kernel,
    pub(super) privileges: Privileges,
    pub(super) restrictions: Vec<RestrictionRow>,
    pub(super) attach_modes: Vec<AttachModeRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plan: Option<Plan>,
    pub(super) warnings: Vec<String>,
    pub(super) drivers: Vec<Driver>,
    pub(super) unlisted_processes: Vec<UnlistedProcess>,
}

#[derive(Serialize)]
pub(super) struct Kernel {
    pub(super) release: String,
    pub(super) machine: String,
    pub(super) btf: bool,
}

#[derive(Serialize)]
pub(super) struct Privileges {
    pub(super) uid: u32,
    /// Can load and attach BPF programs.
    pub(super) load: bool,
    /// Can inspect processes of other users.
    pub(super) inspect: bool,
    pub(super) missing: Vec<&'static str>,
}

/// A security setting that is active here.
#[derive(Serialize)]
pub(super) struct RestrictionRow {
    pub(super) name: &'static str,
    pub(super) effect: &'static str,
    pub(super) message: String,
}

#[derive(Serialize)]
pub(super) struct AttachModeRow {
    pub(super) name: &'static str,
    /// None: not tried, because tracing is impossible for another reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) works: Option<bool>,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip)]
    pub(super) about: &'static str,
}

#[derive(Serialize)]
pub(super) struct Plan {
    pub(super) attach_mode: &'static str,
    pub(super) task_storage: bool,
    pub(super) python_stacks: bool,
}

/// A copy of the driver; without `error` it can be probed.
#[derive(Serialize)]
pub(super) struct Driver {
    pub(super) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) library: Option<Library>,
}

#[derive(Serialize)]
pub(super) struct Library {
    pub(super) hooked_functions: usize,
    pub(super) emulated_functions: usize,
    pub(super) unknown_functions: Vec<String>,
    pub(super) processes: usize,
}

/// A process that has a GPU open and that the driver does not list.
#[derive(Serialize)]
pub(super) struct UnlistedProcess {
    pub(super) pid: u32,
    /// Whether it uses CUDA, so that it may hold memory.
    pub(super) has_cuda: bool,
    pub(super) message: String,
}

impl Checks {
    /// Runs all checks.
    pub(super) fn run() -> Self {
        let host = probe_host();
        let (plan, error) = match plan::plan(&host) {
            Ok(plan) => (Some(plan), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            works: error.is_none(),
            error,
            kernel: Kernel {
                release: host.release.clone(),
                machine: host.machine.clone(),
                btf: host.btf,
            },
            privileges: privileges(&host),
            restrictions: restrictions(&host)
                .into_iter()
                .map(|found| RestrictionRow {
                    name: found.name,
                    effect: found.effect.name(),
                    message: sanitize(&found.message).into_owned(),
                })
                .collect(),
            attach_modes: AttachMode::ALL.map(|mode| attach_mode(&host, mode)).into(),
            warnings: plan.as_ref().map(|plan| plan.warnings.clone()).unwrap_or_default(),
            plan: plan.map(|plan| summary(&plan)),
            drivers: drivers(),
            unlisted_processes: unlisted_processes(),
        }
    }

    /// Number of hooked functions that a driver can have.
    pub(super) const fn hooks() -> usize {
        HOOKS.len()
    }
}

fn unlisted_processes() -> Vec<UnlistedProcess> {
    let holders = listed_processes().map(|listed| unlisted_holders(&listed)).unwrap_or_default();
    let row = |holder: DeviceHolder| UnlistedProcess {
        pid: holder.pid.0,
        has_cuda: holder.has_cuda,
        message: sanitize(&device_holder_sentence(&holder)).into_owned(),
    };
    holders.into_iter().map(row).collect()
}

fn privileges(host: &HostInfo) -> Privileges {
    let caps = &host.capabilities;
    // Capabilities of a user namespace have no effect outside of it.
    let is_host = !host.security.user_namespace;
    Privileges {
        uid: caps.uid,
        load: is_host && caps.bpf && caps.perfmon,
        inspect: is_host && caps.ptrace && caps.read_files,
        missing: caps.missing_capabilities(),
    }
}

fn attach_mode(host: &HostInfo, mode: AttachMode) -> AttachModeRow {
    let outcome = host.attach_modes.iter().find(|(tried, _)| *tried == mode);
    let error = outcome.and_then(|(_, outcome)| outcome.as_ref().err().cloned());
    AttachModeRow {
        name: mode.name(),
        works: outcome.map(|_| error.is_none()),
        error,
        about: mode.about(),
    }
}

fn summary(plan: &AttachPlan) -> Plan {
    Plan {
        attach_mode: plan.attach_mode.name(),
        task_storage: plan.task_storage,
        python_stacks: plan.loops,
    }
}

/// Returns the installed copies of the driver and those in use, each once.
fn drivers() -> Vec<Driver> {
    let mut seen = Vec::new();
    let in_use = scan_all();
    let open = |path: PathBuf| (DriverLibrary::open(&path), path);
    let mapped = |mapping: &Mapping| {
        (DriverLibrary::of(mapping.open(), &mapping.path), mapping.path.clone())
    };
    let candidates = installed().into_iter().map(open).chain(in_use.iter().map(mapped));
    let mut drivers = Vec::new();
    for (library, name) in candidates {
        let path = sanitize(&name.to_string_lossy()).into_owned();
        let (library, error) = match library {
            Ok(image) if seen.contains(&image.identity) => continue,
            Ok(image) => {
                let library = Library {
                    hooked_functions: image.functions.len(),
                    emulated_functions: image.functions.iter().filter(|f| f.point.emulated).count(),
                    unknown_functions: image
                        .unknown
                        .iter()
                        .map(|function| sanitize(&function.name).into_owned())
                        .collect(),
                    processes: in_use.iter().filter(|mapping| mapping.path == name).count(),
                };
                seen.push(image.identity);
                (Some(library), None)
            }
            Err(error) => (None, Some(sanitize(&error.to_string()).into_owned())),
        };
        drivers.push(Driver { path, error, library });
    }
    drivers
}
