//! Driver functions by name: rows of the hook table move from version to version, names do not.

use std::collections::BTreeMap;

use engine::ids::FunctionId;

/// Finds a driver function in this version's hook table.
pub type Resolver = fn(&str) -> Option<FunctionId>;

/// The most functions that are told apart; the driver has fewer. Others share the last id.
const MOST: usize = 4096;

/// The longest name that is kept whole.
const LONGEST: usize = 256;

/// The functions that a recording names.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    ids: BTreeMap<Box<str>, FunctionId>,
    names: BTreeMap<FunctionId, Box<str>>,
}

impl Functions {
    /// The id of a function: that of this version's hook table; else the one it was recorded with,
    /// if nobody has it; else the next free one from the top.
    pub(super) fn id(&mut self, name: &str, recorded: FunctionId, known: Resolver) -> FunctionId {
        let name = name.get(..name.floor_char_boundary(LONGEST)).unwrap_or(name);
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let wanted = known(name).unwrap_or(recorded);
        let id = if self.ids.len() >= MOST {
            FunctionId(u16::MAX)
        } else if self.names.contains_key(&wanted) {
            let mut from_the_top = (0..=u16::MAX).rev().map(FunctionId);
            from_the_top.find(|id| !self.names.contains_key(id)).unwrap_or(wanted)
        } else {
            wanted
        };
        if self.ids.len() < MOST {
            self.ids.insert(name.into(), id);
            self.names.insert(id, name.into());
        }
        id
    }

    /// What a function is called (hostile text).
    #[must_use]
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
    fn names_decide_and_unknown_ones_keep_their_number_where_it_is_free() {
        let mut functions = Functions::default();
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
