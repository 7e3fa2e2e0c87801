//! `[kubernetes]`: where names of pods come from.

use std::path::PathBuf;

use serde::Deserialize;

use super::Span;
use crate::output;
use crate::serve::secret;

/// See the module. Ids of containers come from cgroups, and need none of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Kubernetes {
    /// The folder that has the node's `pods` and `containers`.
    pub(crate) log_dir: PathBuf,
    /// The node's kubelet, asked for names that the files do not tell; nobody unless it is named.
    /// `${NODE_IP}` in it is that variable of the environment.
    pub(crate) kubelet_url: Option<String>,
    /// A file with the token for it. It is read again for each request, as tokens are renewed.
    pub(crate) token_file: Option<PathBuf>,
    /// Whose certificates are believed, in PEM; without it those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// How long an answer may take.
    pub(crate) timeout: Span,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            log_dir: "/var/log".into(),
            kubelet_url: None,
            token_file: None,
            ca_file: None,
            timeout: Span(std::time::Duration::from_secs(5)),
        }
    }
}

impl Kubernetes {
    /// The address of the kubelet, with what the environment says in it.
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
        // An address of IPv6 stands in brackets.
        let bracketed = |node: String| if node.contains(':') { format!("[{node}]") } else { node };
        Some(node.map(|node| address.replace("${NODE_IP}", &bracketed(node))))
    }

    /// What is wrong with it.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        let Some(address) = self.address() else {
            if self.token_file.is_some() || self.ca_file.is_some() {
                wrong.push(
                    "kubernetes.token_file and kubernetes.ca_file require kubernetes.kubelet_url"
                        .into(),
                );
            }
            return;
        };
        let address = match address {
            Ok(address) => address,
            Err(error) => return wrong.push(error),
        };
        let plain = address.starts_with("http://");
        if !plain && !address.starts_with("https://") {
            wrong.push(format!(
                "kubernetes.kubelet_url is `{}`: must begin with `https:` and have the port (10250)",
                formats::plain::plain(&address)
            ));
        }
        if plain && self.token_file.is_some() {
            wrong.push(
                "kubernetes.token_file would be sent unencrypted; use `https:` in \
                 kubernetes.kubelet_url"
                    .into(),
            );
        }
        let token = self.token_file.as_deref().and_then(|file| secret::line(file).err());
        let authority = self.ca_file.as_deref().and_then(|file| secret::public(file).err());
        for error in token.into_iter().chain(authority) {
            wrong.push(format!("[kubernetes] {}", output::reasons(&error)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn wrong(text: &str) -> Vec<String> {
        toml::from_str::<Config>(text).unwrap().check()
    }

    #[test]
    fn a_kubelet_is_asked_only_in_ways_that_keep_its_token() {
        assert!(wrong("").is_empty());
        assert!(wrong("[kubernetes]\nlog_dir = '/host/var/log'").is_empty());
        assert!(wrong("[kubernetes]\nkubelet_url = 'https://127.0.0.1:10250/'").is_empty());
        for (text, word) in [
            ("kubelet_url = '10.0.0.1'", "https:"),
            ("kubelet_url = 'https://127.0.0.1/'\ntoken_file = '/dev/null'", "not a regular file"),
            ("kubelet_url = 'http://127.0.0.1:10255/'\ntoken_file = '/dev/null'", "unencrypted"),
            ("token_file = '/dev/null'", "require kubernetes.kubelet_url"),
            ("kubelet_url = 'https://127.0.0.1/'\nca_file = '/no/such/file'", "/no/such/file"),
        ] {
            let wrong = wrong(&format!("[kubernetes]\n{text}"));
            assert!(wrong.iter().any(|why| why.contains(word)), "{text}: {wrong:?}");
        }
        assert!(toml::from_str::<Config>("[kubernetes]\nkublet = 'x'").is_err());
    }
}
