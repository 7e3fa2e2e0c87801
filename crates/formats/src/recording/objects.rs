//! Rows of CUDA objects.

use engine::model::cuda_object::{ObjectCall, ObjectKind};
use engine::model::ids::{ContextId, SiteId};

use super::enum_names::EnumName;
use super::read::row_cells::{RowCells, RowError};
use super::schema::Column;
use super::write::batch_builder::BatchBuilder;

/// Adds the row of an object.
pub(super) fn encode(batch: &mut BatchBuilder, call: ObjectCall) {
    let mut about = |word, kind: ObjectKind, handle| {
        batch.row(word);
        batch.text(Column::Kind, kind.word());
        batch.number(Column::Handle, handle);
    };
    match call {
        ObjectCall::Created { kind, handle, context, site } => {
            about("object_create", kind, handle);
            batch.number(Column::Context, context.map(|context| context.0));
            batch.number(Column::SiteId, site.map(|site| u64::from(site.0)));
        }
        ObjectCall::Destroyed { kind, handle } => about("object_destroy", kind, handle),
    }
}

/// Decodes an object. Kinds of a later version are skipped.
pub(super) fn decode(word: &str, cells: RowCells<'_>) -> Result<Option<ObjectCall>, RowError> {
    if !matches!(word, "object_create" | "object_destroy") {
        return Ok(None);
    }
    let kind = cells.must(Column::Kind, cells.text(Column::Kind))?;
    let Some(kind) = ObjectKind::from_word(kind) else { return Ok(None) };
    let handle = cells.must(Column::Handle, cells.u64(Column::Handle))?;
    Ok(Some(if word == "object_destroy" {
        ObjectCall::Destroyed { kind, handle }
    } else {
        ObjectCall::Created {
            kind,
            handle,
            context: cells.u64(Column::Context).map(ContextId),
            site: cells.u32(Column::SiteId).map(SiteId),
        }
    }))
}
