//! Rows of functions that only create or destroy objects, and the effect of all rows on objects.

use engine::model::cuda_object::ObjectKind;

use super::{CallSemantics, Hook};

const fn creates(symbol: &'static str, kind: ObjectKind, handle: u8) -> Hook {
    Hook { symbol, semantics: CallSemantics::ObjectCreate { kind, handle, image: None } }
}

/// A function that loads code from memory.
const fn loads(symbol: &'static str, kind: ObjectKind) -> Hook {
    Hook { symbol, semantics: CallSemantics::ObjectCreate { kind, handle: 0, image: Some(1) } }
}

const fn destroys(symbol: &'static str, kind: ObjectKind) -> Hook {
    Hook { symbol, semantics: CallSemantics::ObjectDestroy(kind) }
}

use ObjectKind::{Event, Graph, Library, Linker, Module, Surface, Texture};

/// Functions that only create or destroy objects; probed if objects are tracked.
pub(super) const OBJECTS: &[Hook] = &[
    creates("cuEventCreate", Event, 0),
    creates("cuIpcOpenEventHandle", Event, 0),
    destroys("cuEventDestroy_v2", Event),
    destroys("cuEventDestroy", Event),
    creates("cuModuleLoad", Module, 0),
    loads("cuModuleLoadData", Module),
    loads("cuModuleLoadDataEx", Module),
    loads("cuModuleLoadFatBinary", Module),
    destroys("cuModuleUnload", Module),
    loads("cuLibraryLoadData", Library),
    creates("cuLibraryLoadFromFile", Library, 0),
    destroys("cuLibraryUnload", Library),
    creates("cuTexObjectCreate", Texture, 0),
    destroys("cuTexObjectDestroy", Texture),
    creates("cuSurfObjectCreate", Surface, 0),
    destroys("cuSurfObjectDestroy", Surface),
    creates("cuLinkCreate_v2", Linker, 3),
    creates("cuLinkCreate", Linker, 3),
    destroys("cuLinkDestroy", Linker),
    creates("cuGraphClone", Graph, 0),
];

/// Effect of a successful call on an object. The handle of a created object is out value 0, that of
/// a destroyed one is argument 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectEffect {
    /// Creates an object.
    Creates(ObjectKind),
    /// Destroys an object.
    Destroys(ObjectKind),
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::hooks::HOOKS;

    #[test]
    fn every_object_kind_has_create_and_destroy_hooks() {
        let uses: HashSet<_> = HOOKS
            .iter()
            .filter_map(|hook| Some(format!("{:?}", hook.semantics.object()?)))
            .collect();
        for kind in ObjectKind::ALL {
            assert!(uses.contains(&format!("{:?}", ObjectEffect::Creates(kind))), "{kind:?}");
            assert!(uses.contains(&format!("{:?}", ObjectEffect::Destroys(kind))), "{kind:?}");
        }
    }
}
