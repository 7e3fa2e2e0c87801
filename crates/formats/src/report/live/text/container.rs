//! Container of a process as one line.

use engine::model::{Container, Pid, Pod};

use crate::sanitize::sanitize;

/// Number of digits of a container id, as the runtimes print it.
const SHORT_ID_LEN: usize = 12;

/// Returns `container 3f2a5b6c7d8e (docker), pod ns/name (main), pid 17 in container`.
pub(super) fn line(container: &Container, pid: Pid) -> String {
    let Container { id, runtime, pod, container_pid: pid_inside } = container;
    let mut text = format!("container {} ({})", sanitize(&short(id)), runtime.name());
    if let Some(pod) = pod {
        text += &format!(", pod {}", pod_name(pod));
    }
    if let Some(inside) = pid_inside.filter(|inside| *inside != pid) {
        text += &format!(", pid {inside} in container");
    }
    text
}

/// Shortens a hexadecimal id; other names are kept.
fn short(id: &str) -> String {
    if id.len() > SHORT_ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        id.chars().take(SHORT_ID_LEN).collect()
    } else {
        id.to_owned()
    }
}

fn pod_name(pod: &Pod) -> String {
    let name = match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => format!("{}/{}", sanitize(namespace), sanitize(name)),
        (None, Some(name)) => sanitize(name).into_owned(),
        _ => sanitize(&pod.uid).into_owned(),
    };
    match &pod.container {
        Some(container) => format!("{name} ({})", sanitize(container)),
        None => name,
    }
}
