//! Rows about what a process is: its program and its container.

use engine::model::{Container, ContainerRuntime, Pid, Pod, ProcessGroup, ProcessIdentity};

use super::read::row_cells::{RowCells, RowError};
use super::rows::RowFields;
use super::schema::Column;
use super::write::batch_builder::BatchBuilder;

/// A runtime of a later version is unknown.
impl RowFields for Container {
    fn put_all(&self, batch: &mut BatchBuilder) {
        batch.text(Column::Container, &*self.id);
        batch.text(Column::ContainerRuntime, self.runtime.name());
        batch.number(Column::ContainerPid, self.container_pid.map(|pid| u64::from(pid.0)));
        if let Some(pod) = &self.pod {
            batch.text(Column::PodUid, &*pod.uid);
            batch.text(Column::Pod, pod.name.as_deref());
            batch.text(Column::Namespace, pod.namespace.as_deref());
            batch.text(Column::Name, pod.container.as_deref());
        }
    }

    fn get_all(cells: RowCells<'_>) -> Result<Self, RowError> {
        let text = |column| cells.text(column).map(Into::into);
        let runtime = cells.text(Column::ContainerRuntime).and_then(ContainerRuntime::from_name);
        let pod = |uid: Box<str>| Pod {
            uid,
            name: text(Column::Pod),
            namespace: text(Column::Namespace),
            container: text(Column::Name),
        };
        Ok(Self {
            id: cells.must(Column::Container, text(Column::Container))?,
            runtime: runtime.unwrap_or(ContainerRuntime::Unknown),
            pod: text(Column::PodUid).map(pod),
            container_pid: cells.u32(Column::ContainerPid).map(Pid),
        })
    }
}

impl RowFields for ProcessIdentity {
    fn put_all(&self, batch: &mut BatchBuilder) {
        batch.text(Column::Name, self.program.as_deref());
        batch.text(Column::User, self.user.as_deref());
        let ProcessGroup { job, release, rank, tree } = &self.group;
        batch.text(Column::Job, job.as_deref());
        batch.text(Column::Release, release.as_deref());
        batch.number(Column::Rank, rank.map(u64::from));
        batch.number(Column::TreePid, tree.as_ref().map(|(pid, _)| u64::from(pid.0)));
        batch.text(Column::TreeProgram, tree.as_ref().map(|(_, program)| &**program));
    }

    fn get_all(cells: RowCells<'_>) -> Result<Self, RowError> {
        let text = |column| cells.text(column).map(Into::into);
        let tree = cells.u32(Column::TreePid).map(Pid).zip(text(Column::TreeProgram));
        let (job, release, rank) =
            (text(Column::Job), text(Column::Release), cells.u32(Column::Rank));
        let group = ProcessGroup { job, release, rank, tree };
        Ok(Self { program: text(Column::Name), user: text(Column::User), group })
    }
}
