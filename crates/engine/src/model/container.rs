//! Container and pod in which a process runs, as seen from the host.

use crate::model::ids::Pid;

/// Container of a process. All strings are untrusted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Container {
    /// Id given by the runtime, usually 64 hexadecimal digits.
    pub id: Box<str>,
    /// Container runtime.
    pub runtime: ContainerRuntime,
    /// Pod that it belongs to.
    pub pod: Option<Pod>,
    /// Process id inside the container.
    pub container_pid: Option<Pid>,
}

/// Container runtime, detected from the cgroup.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ContainerRuntime {
    /// Docker.
    Docker,
    /// containerd.
    Containerd,
    /// CRI-O.
    CriO,
    /// Podman.
    Podman,
    /// The cgroup looks like that of a container, but the runtime is unknown.
    Unknown,
}

impl ContainerRuntime {
    /// All runtimes.
    pub const ALL: [Self; 5] =
        [Self::Docker, Self::Containerd, Self::CriO, Self::Podman, Self::Unknown];

    /// Name in reports and files.
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

/// A Kubernetes pod. The uid comes from the cgroup, names from files on the node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pod {
    /// Uid.
    pub uid: Box<str>,
    /// Name.
    pub name: Option<Box<str>>,
    /// Namespace.
    pub namespace: Option<Box<str>>,
    /// Name of the container in the pod.
    pub container: Option<Box<str>>,
}
