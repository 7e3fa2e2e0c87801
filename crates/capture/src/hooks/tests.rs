//! The hook table and the list of functions without a hook, compared with the exports of drivers.

use std::collections::BTreeSet;

use super::*;

/// Exports of real drivers, from CUDA 6.5 on.
const DRIVERS: &str = include_str!("../../tests/fixtures/driver_exports.txt");

/// Returns the exports of each driver, oldest first, by its version.
fn drivers() -> Vec<(&'static str, BTreeSet<&'static str>)> {
    let mut drivers: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    let mut exports = BTreeSet::new();
    for line in DRIVERS.lines() {
        match line.split_once(' ').unwrap() {
            ("=", version) => drivers.push((version, exports.clone())),
            ("+", name) => assert!(exports.insert(name), "{name} twice"),
            ("-", name) => assert!(exports.remove(name), "{name} removed twice"),
            (mark, _) => assert_eq!(mark, "#"),
        }
        if let Some((_, last)) = drivers.last_mut() {
            last.clone_from(&exports);
        }
    }
    drivers
}

fn is_unknown(name: &str) -> bool {
    is_unlisted_memory_function(name) && function_id(name).is_none()
}

fn assert_known<'a>(names: impl Iterator<Item = &'a str>, driver: &str) {
    let unknown: Vec<&str> = names.filter(|name| is_unknown(name)).collect();
    assert!(unknown.is_empty(), "{driver} exports unknown memory functions: {unknown:?}");
}

#[test]
fn no_driver_generation_has_unknown_memory_functions() {
    let drivers = drivers();
    assert!(drivers.len() >= 18 && drivers[0].0 == "340.108", "{}", drivers.len());
    for (version, exports) in drivers {
        let count = exports.iter().filter(|name| looks_like_memory_function(name)).count();
        assert!(count > 100, "{version}: {count}");
        assert_known(exports.into_iter(), version);
    }
}

#[test]
fn every_hook_exists_in_a_driver() {
    let drivers = drivers();
    let absent: Vec<_> = HOOKS
        .iter()
        .filter(|hook| !drivers.iter().any(|(_, exports)| exports.contains(hook.symbol)))
        .map(|hook| hook.symbol)
        .collect();
    assert!(absent.is_empty(), "{absent:?}");
}

#[test]
fn installed_drivers_have_no_unknown_memory_functions() {
    use object::{Object, ObjectSymbol};
    for path in crate::libraries::installed() {
        let data = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*data).unwrap();
        let names = file.dynamic_symbols().filter(|s| s.is_definition());
        let names = names.filter_map(|symbol| symbol.name().ok());
        assert_known(names, &path.display().to_string());
    }
}

#[test]
fn no_driver_generation_has_unknown_object_functions() {
    let hooked = |name: &str| {
        HOOKS.iter().any(|hook| hook.symbol == name && hook.semantics.object().is_some())
    };
    for (version, exports) in drivers() {
        let objects: Vec<_> =
            exports.into_iter().filter(|name| looks_like_object_function(name)).collect();
        assert!(objects.len() > 20, "{version}: {}", objects.len());
        let unknown: Vec<_> = objects
            .into_iter()
            .filter(|name| !hooked(name) && unhooked_object(name).is_none())
            .collect();
        assert!(unknown.is_empty(), "{version}: {unknown:?}");
    }
}

#[test]
fn new_memory_function_is_noticed() {
    for name in ["cuMemAllocFromTheMoon", "cuArrayCreate_v9", "cuDeviceGetBestMemPool"] {
        assert!(looks_like_memory_function(name) && unhooked(name).is_none(), "{name}");
    }
}
