//! Rows of containers.

use engine::container::{Container, Pod, Runtime};
use engine::ids::Pid;

use super::cells::{Bad, Cells};
use super::schema::Column;
use super::sheet::Sheet;

/// Adds the row of a container.
pub(super) fn encode(batch: &mut Sheet, container: &Container) {
    batch.row("container");
    batch.text(Column::Container, &*container.id);
    batch.text(Column::Runtime, container.runtime.name());
    batch.number(Column::ContainerPid, container.pid_inside.map(|pid| u64::from(pid.0)));
    if let Some(pod) = &container.pod {
        batch.text(Column::PodUid, &*pod.uid);
        batch.text(Column::Pod, pod.name.as_deref());
        batch.text(Column::Namespace, pod.namespace.as_deref());
        batch.text(Column::Name, pod.container.as_deref());
    }
}

/// Decodes a container. A runtime of a later version is unknown.
pub(super) fn decode(cells: Cells<'_>) -> Result<Container, Bad> {
    let text = |column| cells.text(column).map(Into::into);
    let runtime = cells.text(Column::Runtime);
    let known = |word: &str| Runtime::ALL.into_iter().find(|runtime| runtime.name() == word);
    let pod = |uid: Box<str>| Pod {
        uid,
        name: text(Column::Pod),
        namespace: text(Column::Namespace),
        container: text(Column::Name),
    };
    Ok(Container {
        id: cells.must(Column::Container, text(Column::Container))?,
        runtime: runtime.and_then(known).unwrap_or(Runtime::Unknown),
        pod: text(Column::PodUid).map(pod),
        pid_inside: cells.u32(Column::ContainerPid).map(Pid),
    })
}
