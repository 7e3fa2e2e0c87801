#![no_main]

use fuzz::panics::{Tolerated, tolerate};

/// The reader catches panics of the libraries that read tables and debug information.
fn dwarf(bytes: &[u8]) -> bool {
    tolerate(Tolerated::Dependencies, || fuzz::dwarf(bytes))
}

fuzz::target!(dwarf, fuzz::mutate::elf::elf);
