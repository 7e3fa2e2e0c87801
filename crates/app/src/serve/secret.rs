//! Secrets and certificates, which come from files only.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use formats::plain::plain;
use ureq::tls::{Certificate, PemItem};

/// The longest file that is read.
const LONGEST: u64 = 4 << 20;

fn shown(path: &Path) -> String {
    plain(&path.to_string_lossy()).into_owned()
}

/// Opens a file that is one: a pipe would keep the agent waiting.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    File::open(path)
}

fn bytes(path: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", shown(path));
    let file = open(path).with_context(cannot)?;
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).with_context(cannot)?;
    Ok(bytes)
}

/// A token or password: the one line of a file.
pub(crate) fn read(path: &Path) -> Result<String> {
    let text = String::from_utf8(bytes(path)?).ok();
    let line = text.as_deref().map(str::trim_end).unwrap_or_default();
    if line.is_empty() || !line.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        bail!("{} must hold one line of visible letters", shown(path));
    }
    Ok(line.to_owned())
}

/// Certificates in PEM; one at least.
pub(crate) fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let bytes = bytes(path)?;
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&bytes) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => bail!("{} is no PEM: {error}", shown(path)),
        }
    }
    if found.is_empty() {
        bail!("{} holds no certificate in PEM", shown(path));
    }
    Ok(found)
}
