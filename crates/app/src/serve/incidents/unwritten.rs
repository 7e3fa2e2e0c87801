//! What is said of an incident that could not be written.

use std::io::{self, ErrorKind};

/// What to do about it.
pub(super) fn hint(error: &anyhow::Error) -> &'static str {
    // Writers of formats wrap what the system said; its number is in the text of all of them.
    let said = error.chain().find_map(|cause| number(&cause.to_string()));
    match said.map(|number| io::Error::from_raw_os_error(number).kind()) {
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            "free some room or name another folder with [incidents] state"
        }
        Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            "make the folder one that the agent may write, or name another with [incidents] state"
        }
        _ => "name a folder that can be written with [incidents] state",
    }
}

/// The number of the system's error in a text such as "No space left on device (os error 28)".
fn number(text: &str) -> Option<i32> {
    let (_, rest) = text.rsplit_once("(os error ")?;
    rest.split(')').next()?.parse().ok()
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
            let wrapped = anyhow::Error::new(io::Error::other(format!("{error:#}")));
            assert!(hint(&wrapped).contains(says), "{wrapped:#}");
        }
    }
}
