//! Where a process runs, as the host sees it: a container, and the pod that it belongs to.

use crate::ids::Pid;

/// The container of a process. All text is hostile.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Container {
    /// Its id, as the runtime has it: mostly 64 hexadecimal digits.
    pub id: Box<str>,
    /// Who made it.
    pub runtime: Runtime,
    /// The pod that it belongs to.
    pub pod: Option<Pod>,
    /// The process's number inside.
    pub pid_inside: Option<Pid>,
}

/// Who made a container, as its cgroup tells.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Runtime {
    /// Docker.
    Docker,
    /// containerd.
    Containerd,
    /// CRI-O.
    CriO,
    /// Podman.
    Podman,
    /// A cgroup that looks like a container's, of nobody that is known.
    Unknown,
}

impl Runtime {
    /// Every one of them.
    pub const ALL: [Self; 5] =
        [Self::Docker, Self::Containerd, Self::CriO, Self::Podman, Self::Unknown];

    /// The word for it in reports and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
            Self::Podman => "podman",
            Self::Unknown => "unknown",
        }
    }
}

/// A pod of Kubernetes. The cgroup tells its uid; names come from the node's own files.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pod {
    /// Its uid.
    pub uid: Box<str>,
    /// Its name.
    pub name: Option<Box<str>>,
    /// Its namespace.
    pub namespace: Option<Box<str>>,
    /// What the pod calls the container.
    pub container: Option<Box<str>>,
}
