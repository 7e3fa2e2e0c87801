//! TLS: a certificate and its key.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::serve::secret;

/// The longest file of certificates or keys.
const LONGEST: u64 = 1 << 20;

/// Rights by which anybody could read a key. A group of its own is a usual way to hand one out.
const ANYBODY: u32 = 0o007;

/// What answers a client that wants TLS.
pub(super) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let shown = certificate.display();
    let (text, _) = read(certificate)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .with_context(|| format!("{shown} is no certificate in PEM"))?;
    if chain.is_empty() {
        bail!("{shown} has no certificate: it must be in PEM, the server's own first");
    }
    let shown = key.display();
    let (text, mode) = read(key)?;
    if mode & ANYBODY != 0 {
        bail!("anybody can read the key in {shown}: run `chmod 600 {shown}`");
    }
    let secret = PrivateKeyDer::from_pem_slice(&text)
        .with_context(|| format!("{shown} has no private key in PEM"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS cannot be set up")?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .with_context(|| format!("{shown} is not the key of {}", certificate.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// What is in a file, and its rights.
fn read(path: &Path) -> Result<(Vec<u8>, u32)> {
    let file = secret::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mode =
        file.metadata().with_context(|| format!("cannot look at {}", path.display()))?.mode();
    let mut text = Vec::new();
    file.take(LONGEST)
        .read_to_end(&mut text)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok((text, mode))
}
