//! Rows of containers.

use engine::model::container::{Container, ContainerRuntime, Pod};
use engine::model::ids::Pid;

use super::read::row_cells::{RowCells, RowError};
use super::schema::Column;
use super::write::batch_builder::BatchBuilder;

/// Adds the row of a container.
pub(super) fn encode(batch: &mut BatchBuilder, container: &Container) {
    batch.row("container");
    batch.text(Column::Container, &*container.id);
    batch.text(Column::ContainerRuntime, container.runtime.name());
    batch.number(Column::ContainerPid, container.container_pid.map(|pid| u64::from(pid.0)));
    if let Some(pod) = &container.pod {
        batch.text(Column::PodUid, &*pod.uid);
        batch.text(Column::Pod, pod.name.as_deref());
        batch.text(Column::Namespace, pod.namespace.as_deref());
        batch.text(Column::Name, pod.container.as_deref());
    }
}

/// Decodes a container. A runtime of a later version is unknown.
pub(super) fn decode(cells: RowCells<'_>) -> Result<Container, RowError> {
    let text = |column| cells.text(column).map(Into::into);
    let runtime = cells.text(Column::ContainerRuntime);
    let known = ContainerRuntime::from_name;
    let pod = |uid: Box<str>| Pod {
        uid,
        name: text(Column::Pod),
        namespace: text(Column::Namespace),
        container: text(Column::Name),
    };
    Ok(Container {
        id: cells.must(Column::Container, text(Column::Container))?,
        runtime: runtime.and_then(known).unwrap_or(ContainerRuntime::Unknown),
        pod: text(Column::PodUid).map(pod),
        container_pid: cells.u32(Column::ContainerPid).map(Pid),
    })
}
