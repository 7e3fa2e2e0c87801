//! Container and pod in which a process runs, as seen from the host.

use crate::model::Pid;
use crate::model::named::named_enum;

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

named_enum! {
    /// Container runtime, detected from the cgroup.
    pub enum ContainerRuntime {
        /// Docker.
        Docker => "docker",
        /// containerd.
        Containerd => "containerd",
        /// CRI-O.
        CriO => "cri-o",
        /// Podman.
        Podman => "podman",
        /// The cgroup looks like that of a container, but the runtime is unknown.
        Unknown => "unknown",
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
