//! Fuzz targets of this crate: each reads one input and checks what must hold for any input. The
//! package `fuzz/` calls them; the test here replays inputs that failed before.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed check ends the process")]

pub use crate::api::fuzz::http;

use crate::config::Config;

/// Parses a configuration and validates it. Returns whether it was parsed.
#[must_use]
pub fn config(bytes: &[u8]) -> bool {
    // Other files are rejected before they are parsed.
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let config: Config = match toml::from_str(text) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    assert!(config.check().iter().all(|error| !error.is_empty()));
    // Invalid rules and receivers are skipped.
    config.alerts.rules();
    config.alerts.receivers();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_failed_before_are_handled() {
        assert!(http(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"));
        assert!(config(b"[http]\nlisten = '127.0.0.1:9754'\n"));
        for (target, run) in [("http", http as fn(&[u8]) -> bool), ("config", config)] {
            let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
            for file in std::fs::read_dir(dir.join(target)).into_iter().flatten() {
                run(&std::fs::read(file.unwrap().path()).unwrap());
            }
        }
    }
}
