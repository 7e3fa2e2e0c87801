//! Secrets and certificates, which come from files only, and the limit of files that the agent
//! reads. One rule applies to every secret:
//! - other users have no access to the file, and its group cannot write to it: `chmod 600`, or
//!   `640` for a group that may read it;
//! - except on a read-only tmpfs, which is how Kubernetes mounts Secrets (with mode 0644, in a
//!   container without other users).

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use formats::sanitize::sanitize;
use rustix::fs::OFlags;
use ureq::tls::{Certificate, PemItem};

use crate::files::trusted_path;

/// Maximum size of a file.
const MAX_BYTES: u64 = 4 << 20;

/// Mode bits by which other users could read or change a secret.
const EXPOSED: u32 = 0o027;

/// Magic numbers of file systems in memory.
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

fn shown(path: &Path) -> String {
    sanitize(&path.to_string_lossy()).into_owned()
}

/// Opens a regular file. Anything else is an error: opening a pipe would block until it has a
/// writer.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Reads an open file, up to the maximum size: `/dev/zero` has no end.
pub(crate) fn contents(file: File, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {}", shown(path)))?;
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{}: larger than {} MiB; name another file", shown(path), MAX_BYTES >> 20);
    }
    Ok(bytes)
}

/// Reads a file that is not secret, such as a certificate.
pub(crate) fn public(path: &Path) -> Result<Vec<u8>> {
    contents(open(path).with_context(|| format!("cannot read {}", shown(path)))?, path)
}

/// Reads a secret, such as a key.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", shown(path));
    let file = open(path).with_context(cannot)?;
    let mode = file.metadata().with_context(cannot)?.mode();
    if mode & EXPOSED != 0 && !is_mounted_secret(&file) {
        let path = shown(path);
        bail!(
            "{path}: other users can read or change this secret (mode {:04o}); run `chmod 600 {path}`",
            mode & 0o7777
        );
    }
    contents(file, path)
}

/// Whether the file is on a read-only tmpfs, as Kubernetes mounts Secrets.
fn is_mounted_secret(file: &File) -> bool {
    let kind = rustix::fs::fstatfs(file).map(|statfs| statfs.f_type as u64 & u64::from(u32::MAX));
    kind.is_ok_and(|kind| kind == TMPFS || kind == RAMFS) && trusted_path::is_read_only(file)
}

/// Reads a token, password or secret URL: the single line of a file.
pub(crate) fn line(path: &Path) -> Result<String> {
    let text = String::from_utf8(bytes(path)?).ok();
    let line = text.as_deref().map(str::trim_end).unwrap_or_default();
    if line.is_empty() || !line.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        bail!("{}: must hold one line of visible ASCII characters", shown(path));
    }
    Ok(line.to_owned())
}

/// Reads PEM certificates; at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let bytes = public(path)?;
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&bytes) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => bail!("{}: not PEM: {error}", shown(path)),
        }
    }
    if found.is_empty() {
        bail!("{} holds no certificate in PEM", shown(path));
    }
    Ok(found)
}
