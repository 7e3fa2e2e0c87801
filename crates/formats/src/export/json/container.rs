//! Container of a process as JSON.

use engine::container::{Container, Pod};
use serde::Serialize;

use crate::plain::plain;

/// Container of a process.
#[derive(Serialize)]
pub(super) struct ContainerObject {
    id: String,
    runtime: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<PodObject>,
}

#[derive(Serialize)]
struct PodObject {
    uid: String,
    name: Option<String>,
    namespace: Option<String>,
    container: Option<String>,
}

impl ContainerObject {
    pub(super) fn new(container: &Container) -> Self {
        Self {
            id: plain(&container.id).into_owned(),
            runtime: container.runtime.name(),
            pid: container.pid_inside.map(|pid| pid.0),
            pod: container.pod.as_ref().map(PodObject::new),
        }
    }
}

impl PodObject {
    fn new(pod: &Pod) -> Self {
        let own = |text: &Option<Box<str>>| text.as_deref().map(|text| plain(text).into_owned());
        Self {
            uid: plain(&pod.uid).into_owned(),
            name: own(&pod.name),
            namespace: own(&pod.namespace),
            container: own(&pod.container),
        }
    }
}
