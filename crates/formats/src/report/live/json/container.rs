//! Container of a process as JSON.

use engine::model::container::{Container, Pod};
use serde::Serialize;

use crate::sanitize::sanitize;

/// Container of a process.
#[derive(Serialize)]
pub(super) struct ContainerJson {
    id: String,
    runtime: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<PodJson>,
}

#[derive(Serialize)]
struct PodJson {
    uid: String,
    name: Option<String>,
    namespace: Option<String>,
    container: Option<String>,
}

impl ContainerJson {
    pub(super) fn new(container: &Container) -> Self {
        Self {
            id: sanitize(&container.id).into_owned(),
            runtime: container.runtime.name(),
            pid: container.container_pid.map(|pid| pid.0),
            pod: container.pod.as_ref().map(PodJson::new),
        }
    }
}

impl PodJson {
    fn new(pod: &Pod) -> Self {
        let own = |text: &Option<Box<str>>| text.as_deref().map(|text| sanitize(text).into_owned());
        Self {
            uid: sanitize(&pod.uid).into_owned(),
            name: own(&pod.name),
            namespace: own(&pod.namespace),
            container: own(&pod.container),
        }
    }
}
