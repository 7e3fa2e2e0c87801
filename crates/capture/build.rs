//! Compiles the probes with clang and writes the Rust side of `wire.h`.

#[path = "build/arch.rs"]
mod arch;
#[path = "build/wire.rs"]
mod wire;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The oldest clang version whose code the verifiers of old and new kernels accept.
const MIN_CLANG_VERSION: u32 = 16;

fn main() {
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| e.to_string())?);
    let sources = Path::new("src/bpf");
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed=CLANG");
    let header = fs::read_to_string(sources.join("wire.h")).map_err(|e| e.to_string())?;
    let rust = wire::generate(&header)?;
    fs::write(out.join("wire.rs"), rust).map_err(|e| e.to_string())?;
    compile(&sources.join("vramscope.bpf.c"), &out.join("vramscope.bpf.o"))
}

fn compile(source: &Path, object: &Path) -> Result<(), String> {
    let clang = find_clang()?;
    // For the unit tests of the probes.
    println!("cargo::rustc-env=VRAMSCOPE_CLANG={clang}");
    let headers = env::var("DEP_BPF_INCLUDE").map_err(|_| "libbpf-sys reported no include path")?;
    let arch = env::var("CARGO_CFG_TARGET_ARCH").map_err(|e| e.to_string())?;
    let define = arch::define(&arch)?;
    let host = env::var("HOST").map_err(|e| e.to_string())?;
    let host = host.split('-').next().unwrap_or_default();
    let output = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-Wno-unused-parameter", define, "-c"])
        .arg(format!("-I{headers}"))
        // asm/types.h of a multi-arch distribution, the same for all processors.
        .arg(format!("-I/usr/include/{host}-linux-gnu"))
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|e| format!("cannot run {clang}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).replace('\n', "\ncargo::error=");
    Err(format!("{clang} could not compile {}:\ncargo::error={message}", source.display()))
}

fn find_clang() -> Result<String, String> {
    let named = env::var("CLANG").ok();
    let candidates = match &named {
        Some(clang) => vec![clang.clone()],
        None => std::iter::once("clang".to_owned())
            .chain((MIN_CLANG_VERSION..=24).rev().map(|v| format!("clang-{v}")))
            .collect(),
    };
    for clang in candidates {
        if clang_version(&clang).is_some_and(|v| v >= MIN_CLANG_VERSION) {
            return Ok(clang);
        }
    }
    Err(format!(
        "no clang {MIN_CLANG_VERSION} or newer found{}; `./dev build` installs one, or set CLANG",
        named.map(|n| format!(" (CLANG={n})")).unwrap_or_default()
    ))
}

fn clang_version(clang: &str) -> Option<u32> {
    let output = Command::new(clang).arg("-dumpversion").output().ok()?;
    String::from_utf8(output.stdout).ok()?.split('.').next()?.trim().parse().ok()
}
