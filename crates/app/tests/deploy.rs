//! What deploys the agent, by other people's tools: systemd, Helm, Kubernetes' schemas, a linter for images.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use harness::around::secret;
use harness::files::{blocks, read, root, tool};
use harness::{VRAMSCOPE, agent};

/// The most that systemd may find exposed, in tenths; docs/operations/install.md states it.
const EXPOSURE: &str = "30";

fn fine(output: &Output) -> String {
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}{}", String::from_utf8_lossy(&output.stdout));
    assert!(messages.is_empty(), "{messages}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether the agent takes these settings.
fn check(file: &Path) -> Output {
    agent::check(file).env("NODE_IP", "10.0.0.7").output().unwrap()
}

#[test]
fn the_unit_is_right_and_exposes_little() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("vramscope.service");
    // What is not installed here cannot be found.
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
    let stated = format!("{}.{}", &EXPOSURE[..1], &EXPOSURE[1..]);
    assert!(read("docs/operations/install.md").contains(&format!("at most {stated}")));
}

#[test]
fn the_settings_beside_the_unit_are_fine() {
    let output = check(&root().join("contrib/systemd/vramscope.toml"));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_chart_renders_to_what_kubernetes_takes_with_settings_that_the_agent_takes() {
    let output = tool("python").arg(root().join("tools/check-deploy")).output().unwrap();
    let configs: BTreeMap<String, String> = serde_json::from_str(&fine(&output)).unwrap();
    assert_eq!(configs.len(), 3);
    for (case, config) in configs {
        is_taken(&case, &config);
    }
}

/// Fails unless the agent takes these settings, in a pod that has their files.
fn is_taken(place: &str, config: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [token, ca] = ["token", "ca.crt"].map(|name| folder.path().join(name));
    secret(&token, "0123456789abcdef");
    fs::write(&ca, "").unwrap();
    let config = config
        .replace("/var/run/secrets/kubelet/token", token.to_str().unwrap())
        .replace("/host/kubelet/ca.crt", ca.to_str().unwrap());
    let file = folder.path().join("vramscope.toml");
    fs::write(&file, config).unwrap();
    let output = check(&file);
    assert!(output.status.success(), "{place}: {output:?}");
}

#[test]
fn the_settings_of_the_guide_are_taken() {
    let blocks = blocks("docs/operations/install.md", "toml");
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        is_taken("docs/operations/install.md", &block);
    }
}

#[test]
fn the_unit_and_the_chart_ask_for_the_same_capabilities() {
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
    // The guide says why, for each of them.
    let guide = read("docs/operations/install.md");
    for capability in &unit {
        assert!(guide.contains(&format!("| `CAP_{capability}` |")), "{capability}");
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = read("contrib/helm/vramscope/Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    assert!(chart.contains(&format!("appVersion: \"{version}\"")), "{chart}");
    assert!(chart.contains(&format!("\nversion: {version}\n")), "{chart}");
}

#[test]
fn the_recipe_of_the_image_has_nothing_to_complain_about() {
    fine(&tool("hadolint").arg(root().join("contrib/docker/Dockerfile")).output().unwrap());
}

/// The image's own command, as it would run in the container with that token.
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
fn image_listens_where_its_port_can_be_published_and_requires_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
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
