//! Links the C++ library of the fuzzer statically, so that targets run on machines without it.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let found = Command::new("g++").arg("-print-file-name=libstdc++.a").output();
    let path = found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let (Ok(path), Ok(out)) = (path, env::var("OUT_DIR")) else { return };
    // The linker takes the first directory that has the library, shared or not.
    let link = Path::new(&out).join("libstdc++.a");
    let _ = fs::remove_file(&link);
    if symlink(path, &link).is_ok() {
        println!("cargo::rustc-link-search=native={out}");
    }
}
