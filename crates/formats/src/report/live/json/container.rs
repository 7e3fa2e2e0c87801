//! Container of a process as JSON.

use engine::model::{Container, Pod};

use crate::report::json_objects::{Word, json_objects};
use crate::sanitize::sanitized;

json_objects! {
    /// Container of a process.
    pub(crate) struct ContainerJson(container: &Container): Deserialize {
        id: String = sanitized(&container.id),
        runtime: Word = container.runtime.name().into(),
        pid?: Option<u32> = container.container_pid.map(|pid| pid.0),
        pod?: Option<PodJson> = container.pod.as_ref().map(PodJson::new),
    }

    pub(crate) struct PodJson(pod: &Pod): Deserialize {
        uid: String = sanitized(&pod.uid),
        name: Option<String> = pod.name.as_deref().map(sanitized),
        namespace: Option<String> = pod.namespace.as_deref().map(sanitized),
        container: Option<String> = pod.container.as_deref().map(sanitized),
    }
}
