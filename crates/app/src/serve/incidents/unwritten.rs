//! What is said of an incident that could not be written.

use std::io::{self, ErrorKind};

/// What to do about it.
pub(super) fn hint(error: &anyhow::Error) -> &'static str {
    let kind =
        error.chain().find_map(|cause| cause.downcast_ref::<io::Error>().map(io::Error::kind));
    match kind {
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            "free some room or name another folder with [incidents] state"
        }
        Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            "make the folder one that the agent may write, or name another with [incidents] state"
        }
        _ => "name a folder that can be written with [incidents] state",
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_hint_is_about_what_went_wrong() {
        for (number, says) in [
            (28, "free some room"),
            (122, "free some room"),
            (13, "the agent may write"),
            (30, "the agent may write"),
            (20, "name a folder that can be written"),
        ] {
            let failed: io::Result<()> = Err(io::Error::from_raw_os_error(number));
            let error = failed.context("in /var/lib/x").unwrap_err();
            assert!(hint(&error).contains(says), "{error:#}: {}", hint(&error));
        }
    }
}
