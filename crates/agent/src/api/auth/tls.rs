//! TLS certificate and key.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::files::secret;

/// Returns the acceptor of TLS connections.
pub(in crate::api) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let shown = certificate.display();
    let text = secret::public(certificate)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .with_context(|| format!("{shown}: not a PEM certificate"))?;
    if chain.is_empty() {
        bail!("{shown}: no certificate; must be PEM, the server certificate first");
    }
    let shown = key.display();
    let text = secret::bytes(key)?;
    let secret = PrivateKeyDer::from_pem_slice(&text)
        .with_context(|| format!("{shown}: no PEM private key"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("cannot set up TLS")?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .with_context(|| format!("{shown}: not the private key of {}", certificate.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
