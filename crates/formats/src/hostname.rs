//! Facts about this host.

use std::fs;

/// Returns the host name; empty if unknown.
pub fn name() -> String {
    fact("hostname")
}

/// Returns the kernel version.
pub fn kernel() -> String {
    fact("osrelease")
}

fn fact(name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    text.map_or_else(|_| String::new(), |text| text.trim().to_owned())
}
