//! The bearer token of clients.

use std::path::Path;

use anyhow::{Result, bail};
use subtle::ConstantTimeEq;

use crate::files::secret;

/// Minimum length, so that it cannot be guessed.
const MIN_TOKEN_CHARS: usize = 16;

/// Maximum length.
const MAX_BYTES: usize = 4096;

/// A secret; never printed.
pub(in crate::api) struct BearerToken(String);

impl BearerToken {
    /// Reads it from a file.
    pub(in crate::api) fn read(path: &Path) -> Result<Self> {
        let token = secret::line(path)?;
        let fits = (MIN_TOKEN_CHARS..=MAX_BYTES).contains(&token.len());
        if !fits || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!(
                "{}: the token must have {MIN_TOKEN_CHARS} to {MAX_BYTES} visible characters without \
                 blanks; `openssl rand -hex 32` creates one",
                path.display()
            );
        }
        Ok(Self(token))
    }

    /// Compares in constant time, so that the duration reveals nothing but the length of the token.
    pub(in crate::api) fn is(&self, candidate: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(candidate).into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn read(text: &str, mode: u32) -> Result<BearerToken> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        BearerToken::read(&path)
    }

    fn error(text: &str, mode: u32) -> String {
        read(text, mode).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn token_readable_by_others_is_rejected() {
        let text = "0123456789abcdef\n";
        for mode in [0o644, 0o604, 0o660, 0o622, 0o601] {
            assert!(error(text, mode).contains("chmod 600"), "{mode:o}");
        }
        for mode in [0o600, 0o400, 0o640] {
            assert!(read(text, mode).is_ok());
        }
    }

    #[test]
    fn weak_tokens_are_rejected() {
        for text in ["short", "0123456789 abcdef", "0123456789abcde"] {
            assert!(error(text, 0o600).contains("openssl rand"), "{text:?}");
        }
        for text in ["", "\n", "0123456789\nabcdef"] {
            assert!(error(text, 0o600).contains("one line"), "{text:?}");
        }
        assert!(BearerToken::read(Path::new("/nowhere")).is_err());
        assert!(BearerToken::read(Path::new("/")).is_err());
    }

    #[test]
    fn only_the_exact_token_matches() {
        let token = read("0123456789abcdef\n", 0o600).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        let near: [&[u8]; 6] = [
            b"",
            b"0123456789abcde",
            b"0123456789abcdeg",
            b"1123456789abcdef",
            b"0123456789abcdef0123456789abcdef",
            b"0123456789abcdef\0",
        ];
        for near in near {
            assert!(!token.is(near), "{near:?}");
        }
    }
}
