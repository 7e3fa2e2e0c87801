//! Writes the Rust side of `wire.h` with the generator of the capture crate.

#[path = "../capture/build/wire.rs"]
mod wire;

use std::path::PathBuf;
use std::{env, fs};

const HEADER: &str = "../capture/src/bpf/wire.h";

fn main() {
    println!("cargo::rerun-if-changed={HEADER}");
    println!("cargo::rerun-if-changed=../capture/build/wire.rs");
    println!("cargo::rerun-if-changed=build.rs");
    // Patched functions jump into this library: dlclose must not unload it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| e.to_string())?);
    let header = fs::read_to_string(HEADER).map_err(|e| e.to_string())?;
    let text = without_impls(&wire::generate(&header)?);
    fs::write(out.join("wire.rs"), text).map_err(|e| e.to_string())
}

/// Removes the readers and writers: this crate fills the structures in place.
fn without_impls(text: &str) -> String {
    let mut kept = String::new();
    let mut in_impl = false;
    for line in text.lines() {
        in_impl |= line.starts_with("impl ");
        if !in_impl {
            kept.push_str(line);
            kept.push('\n');
        }
        in_impl &= line != "}";
    }
    kept
}
