//! Deployment files, checked with other tools: systemd, Helm, Kubernetes schemas, an image linter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::environment::secret;
use crate::harness::files::{blocks, read, root, tool};
use crate::harness::{VRAMSCOPE, agent};

/// Maximum exposure level that systemd may report, in tenths; docs/operations/install.md states it.
const EXPOSURE: &str = "30";

fn fine(output: &Output) -> String {
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}{}", String::from_utf8_lossy(&output.stdout));
    assert!(messages.is_empty(), "{messages}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks a configuration with the agent.
fn check(file: &Path) -> Output {
    agent::check(file).env("NODE_IP", "10.0.0.7").output().unwrap()
}

#[test]
fn systemd_unit_is_valid_and_hardened() {
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("vramscope.service");
    // Paths that are not installed here cannot be found.
    let text = read("contrib/systemd/vramscope.service");
    fs::write(&unit, text.replace("/usr/local/bin/vramscope", VRAMSCOPE)).unwrap();
    let verify = Command::new("systemd-analyze").arg("verify").arg(&unit).output();
    fine(&verify.expect("these tests need systemd-analyze"));
    let security = Command::new("systemd-analyze")
        .args(["security", "--no-pager", "--offline=true"])
        .arg(format!("--threshold={EXPOSURE}"))
        .arg(&unit)
        .output()
        .unwrap();
    fine(&security);
    let exposure = format!("{}.{}", &EXPOSURE[..1], &EXPOSURE[1..]);
    assert!(read("docs/operations/install.md").contains(&format!("at most {exposure}")));
}

#[test]
fn config_next_to_the_unit_is_valid() {
    let output = check(&root().join("contrib/systemd/vramscope.toml"));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn helm_chart_renders_valid_manifests_and_config() {
    let output = tool("python").arg(root().join("tools/check-deploy")).output().unwrap();
    let configs: BTreeMap<String, String> = serde_json::from_str(&fine(&output)).unwrap();
    assert_eq!(configs.len(), 3);
    for (case, config) in configs {
        assert_accepted(&case, &config);
    }
}

/// Fails unless the agent accepts this configuration, in a pod that has its files.
fn assert_accepted(source: &str, config: &str) {
    let dir = tempfile::tempdir().unwrap();
    let [token, ca] = ["token", "ca.crt"].map(|name| dir.path().join(name));
    secret(&token, "0123456789abcdef");
    fs::copy(root().join("crates/app/tests/fixtures/kubelet/ca.pem"), &ca).unwrap();
    let config = config
        .replace("/var/run/secrets/kubelet/token", token.to_str().unwrap())
        .replace("/host/kubelet/ca.crt", ca.to_str().unwrap());
    let file = dir.path().join("vramscope.toml");
    fs::write(&file, config).unwrap();
    let output = check(&file);
    assert!(output.status.success(), "{source}: {output:?}");
}

#[test]
fn config_in_the_guide_is_valid() {
    let blocks = blocks("docs/operations/install.md", "toml");
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        assert_accepted("docs/operations/install.md", &block);
    }
}

#[test]
fn unit_and_chart_request_the_same_capabilities() {
    let words = |text: &str, after: &str| -> BTreeSet<String> {
        let line = text.lines().find_map(|line| line.strip_prefix(after)).unwrap();
        let words = line.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        let bare = |word: &str| word.strip_prefix("CAP_").unwrap_or(word).to_owned();
        words.filter(|word| !word.is_empty()).map(bare).collect()
    };
    let unit = words(&read("contrib/systemd/vramscope.service"), "AmbientCapabilities=");
    let chart = words(&read("contrib/helm/vramscope/values.yaml"), "capabilities:");
    assert_eq!(unit, chart);
    assert_eq!(unit.len(), 4);
    // The guide gives the reason for each of them.
    let guide = read("docs/operations/install.md");
    for capability in &unit {
        assert!(guide.contains(&format!("| `CAP_{capability}` |")), "{capability}");
    }
}

#[test]
fn chart_version_matches_the_package() {
    let chart = read("contrib/helm/vramscope/Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    assert!(chart.contains(&format!("appVersion: \"{version}\"")), "{chart}");
    assert!(chart.contains(&format!("\nversion: {version}\n")), "{chart}");
}

#[test]
fn containerfile_passes_the_linter() {
    fine(&tool("hadolint").arg(root().join("contrib/docker/Dockerfile")).output().unwrap());
}

/// Returns the image's command, as it would run in the container with that token.
fn image_command(token: &str) -> (Vec<String>, Output) {
    let recipe = read("contrib/docker/Dockerfile");
    let line = recipe.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    let words: Vec<String> = serde_json::from_str(line).unwrap();
    let at = words.iter().position(|word| word == "--token-file").unwrap() + 1;
    let mut command = words.clone();
    command[at] = token.to_owned();
    let output = Command::new(VRAMSCOPE).args(&command).arg("--check-config").output().unwrap();
    (words, output)
}

#[test]
fn image_listens_on_all_addresses_and_requires_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    let (_, output) = image_command(token.to_str().unwrap());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("token"), "{output:?}");
    secret(&token, "0123456789abcdef");
    let (words, output) = image_command(token.to_str().unwrap());
    assert!(output.status.success(), "{output:?}");
    let at = words.iter().position(|word| word == "--listen").unwrap() + 1;
    let address: std::net::SocketAddr = words[at].parse().unwrap();
    assert!(address.ip().is_unspecified(), "{address}");
    assert!(read("contrib/docker/Dockerfile").contains(&format!("EXPOSE {}\n", address.port())));
}
