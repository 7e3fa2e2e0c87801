//! `[kubernetes]`: sources of pod names.

use std::path::PathBuf;

use super::DurationValue;
use super::endpoint::{Credentials, HttpEndpoint};
use super::section::section;

section! {
    /// Pod names. Container ids come from cgroups and need no configuration.
    KubernetesConfig {
        /// Directory with the node's `pods` and `containers` directories.
        log_dir: PathBuf = "/var/log".into(), default "\"/var/log\"";
        /// Kubelet to query for names that the files do not have. `${NODE_IP}` is replaced by that
        /// environment variable.
        kubelet_url: Option<String> = None, example r#""https://${NODE_IP}:10250""#;
        /// Secret file with the token for the kubelet.
        token_file: Option<PathBuf> = None, example "\"/var/run/secrets/kubelet/token\"";
        /// Certificates to trust instead of the system's, in PEM.
        ca_file: Option<PathBuf> = None, example "\"/host/kubelet/ca.crt\"";
        /// Limit of one request, at most 1m.
        timeout: DurationValue = DurationValue::secs(5), default "\"5s\"";
    }
}

impl KubernetesConfig {
    /// Returns the kubelet, if there is one.
    pub(crate) fn endpoint(&self) -> Result<Option<HttpEndpoint>, String> {
        let Some(url) = &self.kubelet_url else { return Ok(None) };
        let url = if url.contains("${NODE_IP}") { with_node_ip(url)? } else { url.clone() };
        Ok(Some(HttpEndpoint {
            key: "kubelet_url",
            url: url.trim_end_matches('/').to_owned(),
            timeout: self.timeout.0,
            credentials: Credentials::bearer(self.token_file.as_deref()),
            ca_file: self.ca_file.clone(),
            // The kubelet is on this node.
            is_direct: true,
            ..HttpEndpoint::default()
        }))
    }

    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        let problems = match self.endpoint() {
            Ok(Some(endpoint)) => endpoint.check(),
            Ok(None) if self.token_file.is_some() || self.ca_file.is_some() => {
                vec!["`token_file` and `ca_file` require `kubelet_url`".into()]
            }
            Ok(None) => Vec::new(),
            Err(problem) => vec![problem],
        };
        errors.extend(problems.into_iter().map(|problem| format!("[kubernetes] {problem}")));
    }
}

fn with_node_ip(url: &str) -> Result<String, String> {
    let node = std::env::var("NODE_IP").map_err(|_| {
        "`kubelet_url` has ${NODE_IP}, which is not set in the environment: set it (in a pod from \
         status.hostIP), or write the address"
            .to_owned()
    })?;
    // IPv6 addresses need brackets.
    let node = if node.contains(':') { format!("[{node}]") } else { node };
    Ok(url.replace("${NODE_IP}", &node))
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
            ("kubelet_url = 'http://a.example:10255/'\ntoken_file = '/dev/null'", "unencrypted"),
            ("token_file = '/dev/null'", "require `kubelet_url`"),
            ("kubelet_url = 'https://127.0.0.1/'\nca_file = '/no/such/file'", "/no/such/file"),
        ] {
            let errors = errors(&format!("[kubernetes]\n{text}"));
            assert!(errors.iter().any(|problem| problem.contains(word)), "{text}: {errors:?}");
        }
        assert!(toml::from_str::<Config>("[kubernetes]\nkublet = 'x'").is_err());
    }
}
