//! Driver functions by name: rows of the hook table move between versions, names do not.

use std::collections::BTreeMap;

use engine::model::FunctionId;

/// Finds a driver function in this version's hook table.
pub type FunctionLookup = fn(&str) -> Option<FunctionId>;

/// Maximum number of distinct functions; the driver has fewer. Others share the last id.
const MAX_FUNCTIONS: usize = 4096;

/// Maximum length of a name; longer ones are truncated.
const MAX_NAME_BYTES: usize = 256;

/// Functions that a recording refers to.
#[derive(Clone, Debug, Default)]
pub struct FunctionTable {
    ids: BTreeMap<Box<str>, FunctionId>,
    names: BTreeMap<FunctionId, Box<str>>,
}

impl FunctionTable {
    /// Returns the id of a function: that of this version's hook table; or else the recorded one,
    /// if it is free; or else the highest free one.
    pub(super) fn id(
        &mut self,
        name: &str,
        recorded: FunctionId,
        known: FunctionLookup,
    ) -> FunctionId {
        let name = name.get(..name.floor_char_boundary(MAX_NAME_BYTES)).unwrap_or(name);
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let preferred = known(name).unwrap_or(recorded);
        let id = if self.ids.len() >= MAX_FUNCTIONS {
            FunctionId(u16::MAX)
        } else if self.names.contains_key(&preferred) {
            let mut descending = (0..=u16::MAX).rev().map(FunctionId);
            descending.find(|id| !self.names.contains_key(id)).unwrap_or(preferred)
        } else {
            preferred
        };
        if self.ids.len() < MAX_FUNCTIONS {
            self.ids.insert(name.into(), id);
            self.names.insert(id, name.into());
        }
        id
    }

    /// Returns the name of a function, not sanitized.
    pub fn name(&self, id: FunctionId) -> Option<&str> {
        self.names.get(&id).map(|name| &**name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> Option<FunctionId> {
        (name == "cuMemAlloc_v2").then_some(FunctionId(7))
    }

    #[test]
    fn ids_follow_names_and_unknown_ones_stay_if_free() {
        let mut functions = FunctionTable::default();
        for (name, recorded, id) in [
            ("cuMemAlloc_v2", 3, 7),
            ("cuNew", 3, 3),
            ("cuNew", 3, 3),
            ("cuNewer", 7, u16::MAX),
            ("cuNewest", 3, u16::MAX - 1),
            ("cuMemAlloc_v2", 7, 7),
        ] {
            assert_eq!(functions.id(name, FunctionId(recorded), known), FunctionId(id), "{name}");
            assert_eq!(functions.name(FunctionId(id)), Some(name));
        }
    }
}
