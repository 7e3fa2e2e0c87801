//! The token that requests must carry.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::serve::secret;

/// The shortest token that nobody guesses.
const SHORTEST: usize = 16;

/// The longest one that is read.
const LONGEST: u64 = 4096;

/// Rights of a file by which somebody else could read or change the token.
const OTHERS: u32 = 0o077;

/// A secret: it is never printed.
pub(super) struct Token(String);

impl Token {
    /// Reads a file that is for its owner alone.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let file =
            secret::open(path).with_context(|| format!("cannot read the token in {shown}"))?;
        let facts = file.metadata().with_context(|| format!("cannot look at {shown}"))?;
        if facts.mode() & OTHERS != 0 {
            bail!("others can read or change the token in {shown}: run `chmod 600 {shown}`");
        }
        let mut text = String::new();
        file.take(LONGEST)
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read the token in {shown}"))?;
        let token = text.trim();
        if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!(
                "the token in {shown} must be {SHORTEST} or more letters, digits and signs without \
                 blanks: `openssl rand -hex 32` makes one"
            );
        }
        Ok(Self(token.to_owned()))
    }

    /// Whether a request carries it. How long that takes does not tell how much of it is right.
    pub(super) fn is(&self, told: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let mut differs = u8::from(own.len() != told.len());
        for (at, byte) in told.iter().take(LONGEST as usize).enumerate() {
            let index = at % own.len().max(1);
            differs |= byte ^ own.get(index).copied().unwrap_or(0);
        }
        std::hint::black_box(differs) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn read(text: &str, mode: u32) -> Result<Token> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Token::read(&path)
    }

    fn refusal(text: &str, mode: u32) -> String {
        read(text, mode).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let text = "0123456789abcdef\n";
        for mode in [0o640, 0o604, 0o660, 0o622, 0o601] {
            assert!(refusal(text, mode).contains("chmod 600"), "{mode:o}");
        }
        for mode in [0o600, 0o400] {
            assert!(read(text, mode).is_ok());
        }
    }

    #[test]
    fn a_token_that_can_be_guessed_is_refused() {
        for text in ["", "\n", "short", "0123456789 abcdef", "0123456789abcde"] {
            assert!(refusal(text, 0o600).contains("openssl rand"), "{text:?}");
        }
        assert!(Token::read(Path::new("/nowhere")).is_err());
        assert!(Token::read(Path::new("/")).is_err());
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
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
