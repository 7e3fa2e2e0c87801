//! What this machine says of itself.

use std::fs;

/// What it is called; nothing where it does not tell.
pub(crate) fn name() -> String {
    fact("hostname")
}

/// The version of its kernel.
pub(crate) fn kernel() -> String {
    fact("osrelease")
}

fn fact(name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    text.map_or_else(|_| String::new(), |text| text.trim().to_owned())
}
