//! The environment of an agent: other programs, certificates, small disks.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{ScopedProcess, http, until};

/// Returns the port that a process listens on. The kernel chooses it for port 0: a port that a test
/// chooses may be taken before it is used.
pub fn port_of(pid: u32) -> Option<u16> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let sockets: Vec<String> = targets.map(|target| target.display().to_string()).collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let listens = *state == "0A" && sockets.contains(&format!("socket:[{inode}]"));
        let port = u16::from_str_radix(local.split_once(':')?.1, 16).ok()?;
        listens.then_some(port)
    })
}

/// Another program that runs next to the agent, and its log.
pub struct Service {
    child: ScopedProcess,
    log: PathBuf,
}

impl Service {
    pub fn start(command: &mut Command, log: PathBuf) -> Self {
        let file = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Self { child: ScopedProcess::start(command), log }
    }

    /// Waits until it listens, and returns the port.
    pub fn port(&self) -> u16 {
        until("the port", || self.log(), || port_of(self.child.id()))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

/// The real Prometheus, which scrapes an agent every second.
pub struct Prometheus {
    pub service: Service,
    address: String,
}

impl Prometheus {
    /// Starts it; `more` has further sections of its configuration, with paths relative to the
    /// directory.
    pub fn start(dir: &Path, agent: &str, more: &str) -> Self {
        let settings = dir.join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  evaluation_interval: 1s\n\
             scrape_configs:\n  - job_name: vramscope\n    static_configs:\n      \
             - targets: ['{agent}']\n{more}"
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", settings.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("prometheus").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .arg("--log.level=warn");
        let service = Service::start(&mut command, dir.join("prometheus.log"));
        let address = format!("127.0.0.1:{}", service.port());
        Self { service, address }
    }

    /// Returns its response, if it responds.
    pub fn get(&self, path: &str) -> Option<Value> {
        let response = http::get(&self.address, path, "").ok().filter(http::Response::is_good)?;
        serde_json::from_slice(&response.body).ok()
    }

    /// Returns the result of a query.
    pub fn query(&self, query: &str) -> Option<Vec<Value>> {
        let response = self.get(&format!("/api/v1/query?query={}", http::encode(query)))?;
        response["data"]["result"].as_array().cloned()
    }
}

/// Writes a file that is readable by its owner only.
pub fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Writes an untrusted certificate for this host, and its key.
pub fn certificate(dir: &Path) -> (String, String) {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("certificate.pem"), path("key.pem"));
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &key, "-out", &certificate])
        .output()
        .expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (certificate, key)
}

/// A small disk, removed with the test.
pub struct Disk(pub PathBuf);

impl Disk {
    pub fn new(dir: PathBuf) -> Self {
        std::fs::create_dir(&dir).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "disk"]).arg(&dir);
        assert!(mount.status().unwrap().success(), "mounting a tmpfs needs root");
        Self(dir)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
