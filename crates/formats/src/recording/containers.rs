//! Containers of processes, to rows and back.

use engine::container::{Container, Pod, Runtime};
use engine::ids::Pid;

use super::cells::{Bad, Cells};
use super::schema::Column;
use super::sheet::Sheet;

/// Adds the row of a container.
pub(super) fn encode(sheet: &mut Sheet, container: &Container) {
    sheet.row("container");
    sheet.text(Column::Container, &*container.id);
    sheet.text(Column::Runtime, container.runtime.name());
    sheet.number(Column::ContainerPid, container.pid_inside.map(|pid| u64::from(pid.0)));
    if let Some(pod) = &container.pod {
        sheet.text(Column::PodUid, &*pod.uid);
        sheet.text(Column::Pod, pod.name.as_deref());
        sheet.text(Column::Namespace, pod.namespace.as_deref());
        sheet.text(Column::Name, pod.container.as_deref());
    }
}

/// The container of a row. A runtime that a later version knows is unknown to this one.
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
