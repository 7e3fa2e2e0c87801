//! Advice for an incident that could not be written.

use std::io::{self, ErrorKind};

/// Returns what to do about the error.
pub(in crate::incidents) fn advice_for(error: &anyhow::Error) -> &'static str {
    // Writers may wrap the system error in one of kind `Other`.
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref().map(io::Error::kind));
    match kinds.filter(|kind| *kind != ErrorKind::Other).last() {
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            "free some space or set another state_dir"
        }
        Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            "make the directory writable for the agent, or set another state_dir"
        }
        _ => "set state_dir to a writable directory",
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn advice_matches_the_error() {
        for (number, expected) in [
            (28, "free some space"),
            (122, "free some space"),
            (13, "writable for the agent"),
            (30, "writable for the agent"),
            (20, "to a writable directory"),
        ] {
            let failed = || io::Error::from_raw_os_error(number);
            let error = anyhow::Error::new(failed()).context("in /var/lib/x");
            assert!(advice_for(&error).contains(expected), "{error:#}: {}", advice_for(&error));
            // The number of another error in a path is ignored.
            let error = error.context("in /var/lib/(os error 28) (os error 20)");
            assert!(advice_for(&error).contains(expected), "{error:#}: {}", advice_for(&error));
            let kind: io::Result<()> = Err(failed().kind().into());
            let error = kind.context("in /var/lib/x").unwrap_err();
            assert!(advice_for(&error).contains(expected), "{error:#}: {}", advice_for(&error));
            let wrapped = anyhow::Error::new(io::Error::other(error));
            assert!(advice_for(&wrapped).contains(expected), "{wrapped:#}");
        }
    }
}
