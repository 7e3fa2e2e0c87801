//! `[kubernetes]`: sources of pod names.

use std::path::PathBuf;

use serde::Deserialize;

use super::DurationValue;
use crate::io::output;
use crate::serve::secret;

/// `[kubernetes]`. Container ids come from cgroups and need no configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KubernetesConfig {
    /// Directory with the node's `pods` and `containers` logs.
    pub(crate) log_dir: PathBuf,
    /// URL of the node's kubelet, queried for names that the log files do not contain; off by
    /// default. `${NODE_IP}` is replaced from the environment.
    pub(crate) kubelet_url: Option<String>,
    /// File with the token for the kubelet. It is read again for each request, because tokens are
    /// rotated.
    pub(crate) token_file: Option<PathBuf>,
    /// Trusted CA certificates in PEM; by default those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// Timeout of a request.
    pub(crate) timeout: DurationValue,
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self {
            log_dir: "/var/log".into(),
            kubelet_url: None,
            token_file: None,
            ca_file: None,
            timeout: DurationValue(std::time::Duration::from_secs(5)),
        }
    }
}

impl KubernetesConfig {
    /// Returns the URL of the kubelet, with `${NODE_IP}` replaced.
    pub(crate) fn address(&self) -> Option<Result<String, String>> {
        let address = self.kubelet_url.as_deref()?;
        if !address.contains("${NODE_IP}") {
            return Some(Ok(address.to_owned()));
        }
        let node = std::env::var("NODE_IP").map_err(|_| {
            "kubernetes.kubelet_url has ${NODE_IP}, which is not set in the environment: set it \
             (in a pod from status.hostIP), or write the address"
                .to_owned()
        });
        // IPv6 addresses need brackets.
        let bracketed = |node: String| if node.contains(':') { format!("[{node}]") } else { node };
        Some(node.map(|node| address.replace("${NODE_IP}", &bracketed(node))))
    }

    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        let Some(address) = self.address() else {
            if self.token_file.is_some() || self.ca_file.is_some() {
                errors.push(
                    "kubernetes.token_file and kubernetes.ca_file require kubernetes.kubelet_url"
                        .into(),
                );
            }
            return;
        };
        let address = match address {
            Ok(address) => address,
            Err(error) => return errors.push(error),
        };
        let plain = address.starts_with("http://");
        if !plain && !address.starts_with("https://") {
            errors.push(format!(
                "kubernetes.kubelet_url is `{}`: must begin with `https:` and have the port (10250)",
                formats::sanitize::sanitize(&address)
            ));
        }
        if plain && self.token_file.is_some() {
            errors.push(
                "kubernetes.token_file would be sent unencrypted; use `https:` in \
                 kubernetes.kubelet_url"
                    .into(),
            );
        }
        let token = self.token_file.as_deref().and_then(|file| secret::line(file).err());
        let authority = self.ca_file.as_deref().and_then(|file| secret::public(file).err());
        for error in token.into_iter().chain(authority) {
            errors.push(format!("[kubernetes] {}", output::error_chain(&error)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn errors(text: &str) -> Vec<String> {
        toml::from_str::<Config>(text).unwrap().check()
    }

    #[test]
    fn kubelet_token_requires_https() {
        assert!(errors("").is_empty());
        assert!(errors("[kubernetes]\nlog_dir = '/host/var/log'").is_empty());
        assert!(errors("[kubernetes]\nkubelet_url = 'https://127.0.0.1:10250/'").is_empty());
        for (text, word) in [
            ("kubelet_url = '10.0.0.1'", "https:"),
            ("kubelet_url = 'https://127.0.0.1/'\ntoken_file = '/dev/null'", "not a regular file"),
            ("kubelet_url = 'http://127.0.0.1:10255/'\ntoken_file = '/dev/null'", "unencrypted"),
            ("token_file = '/dev/null'", "require kubernetes.kubelet_url"),
            ("kubelet_url = 'https://127.0.0.1/'\nca_file = '/no/such/file'", "/no/such/file"),
        ] {
            let errors = errors(&format!("[kubernetes]\n{text}"));
            assert!(errors.iter().any(|problem| problem.contains(word)), "{text}: {errors:?}");
        }
        assert!(toml::from_str::<Config>("[kubernetes]\nkublet = 'x'").is_err());
    }
}
