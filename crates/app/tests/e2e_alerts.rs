//! From a leaking program to a notification and back: the agent, the real Prometheus and
//! Alertmanager, and the built-in rules. The queries of the dashboard are run in between.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::harness::agent::Agent;
use crate::harness::environment::{Prometheus, Service};
use crate::harness::files::read;
use crate::harness::http::encode;
use crate::harness::{self, TestEnv, until};

/// Collects all POST requests: path and JSON.
#[derive(Clone)]
struct Receiver {
    port: u16,
    posts: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let posts: Arc<Mutex<Vec<_>>> = Arc::default();
        let received = Arc::clone(&posts);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let received = Arc::clone(&received);
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.unwrap());
                    while let Some(post) = read_post(&mut reader) {
                        received.lock().unwrap().push(post);
                        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                        reader.get_mut().write_all(response).unwrap();
                    }
                });
            }
        });
        Self { port, posts }
    }

    fn posts(&self, path: &str) -> Vec<Value> {
        let posts = self.posts.lock().unwrap();
        posts.iter().filter(|(at, _)| at == path).map(|(_, body)| body.clone()).collect()
    }

    /// Returns the state and labels of alerts with a name that Alertmanager sent.
    fn alerts(&self, name: &str) -> Vec<(String, Value)> {
        let posts = self.posts("/alertmanager").into_iter();
        let alerts = posts.flat_map(|post| post["alerts"].as_array().unwrap().clone());
        let named = alerts.filter(|alert| alert["labels"]["alertname"] == name);
        named
            .map(|alert| (alert["status"].as_str().unwrap().to_owned(), alert["labels"].clone()))
            .collect()
    }
}

fn read_post(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let (mut line, mut path, mut length) = (String::new(), String::new(), 0);
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let text = line.trim_end();
        if let Some(rest) = text.strip_prefix("POST ") {
            path = rest.split(' ').next()?.to_owned();
        } else if let Some((name, value)) = text.split_once(": ") {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().ok()?;
            }
        } else if text.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, serde_json::from_slice(&body).unwrap()))
}

/// All programs, each on its own port.
struct AlertStack {
    env: TestEnv,
    receiver: Receiver,
    agent: Agent,
    prometheus: Prometheus,
    alertmanager: Service,
}

impl AlertStack {
    fn set() -> Self {
        let env = TestEnv::new().sharing().env("SIM_MEMORY", "4G");
        let receiver = Receiver::start();
        let dir = env.dir.path();
        let alertmanager = start_alertmanager(dir, receiver.port);
        let port = alertmanager.port();
        let agent = start_agent(&env, receiver.port);
        let prometheus = start_prometheus(dir, &agent, port);
        Self { env, receiver, agent, prometheus, alertmanager }
    }

    /// Waits until `find` returns a value.
    fn until<T>(&self, what: &str, find: impl Fn() -> Option<T>) -> T {
        let context = || {
            let logs = [self.prometheus.service.log(), self.alertmanager.log()];
            let logs = logs.join("\n---\n");
            format!("{}\n---\n{logs}\n{:#?}", self.agent.messages(), self.receiver.posts.lock())
        };
        until(what, context, find)
    }

    /// Returns the state of an alert in Prometheus.
    fn alert_state(&self, name: &str) -> Option<String> {
        let response = self.prometheus.get("/api/v1/alerts")?;
        let alerts = response["data"]["alerts"].as_array()?.clone();
        let found = alerts.into_iter().find(|alert| alert["labels"]["alertname"] == name)?;
        Some(found["state"].as_str()?.to_owned())
    }
}

fn start_alertmanager(dir: &Path, receiver: u16) -> Service {
    let config = dir.join("alertmanager.yml");
    let text = format!(
        "route:\n  receiver: test\n  group_by: ['...']\n  group_wait: 0s\n  group_interval: 1s\n  \
         repeat_interval: 1h\nreceivers:\n  - name: test\n    webhook_configs:\n      \
         - url: http://127.0.0.1:{receiver}/alertmanager\n        send_resolved: true\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new("prometheus-alertmanager");
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.path={}", dir.join("alertmanager").display()))
        .args(["--web.listen-address=127.0.0.1:0", "--cluster.listen-address="])
        .arg("--log.level=warn");
    Service::start(&mut command, dir.join("alertmanager.log"))
}

fn start_prometheus(dir: &Path, agent: &Agent, alertmanager: u16) -> Prometheus {
    // The test must not wait for five minutes.
    let rules = read("contrib/prometheus/vramscope.rules.yml");
    let rules = rules.replace("for: 5m", "for: 1s").replace("interval: 1m", "interval: 1s");
    std::fs::write(dir.join("rules.yml"), rules).unwrap();
    let more = format!(
        "rule_files: [rules.yml]\nalerting:\n  alertmanagers:\n    - static_configs:\n        \
         - targets: ['127.0.0.1:{alertmanager}']\n"
    );
    Prometheus::start(dir, &agent.address, &more)
}

fn start_agent(env: &TestEnv, receiver: u16) -> Agent {
    let dir = env.dir.path();
    let script = dir.join("on-alert");
    let text =
        "#!/bin/sh\necho \"$VRAMSCOPE_STATE $VRAMSCOPE_RULE $VRAMSCOPE_LABEL_PID\" >> \"$1\"\n";
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let settings = format!(
        "[alerts]\nleak_suspect = \"1s\"\nkeep_firing_for = \"2s\"\n\
         [[alerts.receiver]]\ntype = \"log\"\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"http://127.0.0.1:{receiver}/json\"\n\
         [[alerts.receiver]]\ntype = \"command\"\ncommand = [\"{}\", \"{}\"]\n",
        script.display(),
        dir.join("commands").display(),
    );
    Agent::start_with(env, &settings, &[])
}

/// Panels without data in this test: containers, PyTorch, pools, snapshots, exporters.
const MAY_BE_EMPTY: [&str; 8] = [
    "Live device memory by container",
    "Used by container, as reported by the driver",
    "Fragmentation of the PyTorch cache",
    "PyTorch cache",
    "Pools",
    "Incidents",
    "Exports",
    "MIG instances of processes",
];

/// Queries that find something only when events are lost or objects leak.
const MAY_FIND_NOTHING: [&str; 3] = [
    "{{instance}} lost {{class}}",
    "{{instance}} not traced: {{function}}",
    "{{program}} {{pid}} {{location}}: {{resource}}",
];

/// Runs every query of the dashboard.
fn assert_dashboard(stack: &AlertStack) {
    let dashboard: Value = serde_json::from_str(&read("contrib/grafana/vramscope.json")).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let mut empty = BTreeSet::new();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().map_or(&[][..], |targets| targets) {
            let mut expr = target["expr"].as_str().unwrap().replace("$__rate_interval", "10s");
            for variable in ["$instance", "$gpu", "$program", "$user", "$pod"] {
                expr = expr.replace(variable, ".*");
            }
            let path = format!(
                "/api/v1/query_range?query={}&start={}&end={now}&step=1",
                encode(&expr),
                now - 20
            );
            let response =
                stack.prometheus.get(&path).unwrap_or_else(|| panic!("{title}: {expr} failed"));
            assert_eq!(response["status"], "success", "{title}: {expr}: {response}");
            let found = response["data"]["result"].as_array().unwrap();
            let legend = target["legendFormat"].as_str().unwrap();
            if found.is_empty() && !MAY_FIND_NOTHING.contains(&legend) {
                empty.insert(title.to_owned());
            }
            queries += 1;
        }
    }
    assert!(queries > 40, "{queries}");
    let allowed: BTreeSet<String> = MAY_BE_EMPTY.iter().map(|title| (*title).to_owned()).collect();
    assert_eq!(empty.difference(&allowed).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// A leaking program and the notifications about it.
struct Leak<'s> {
    stack: &'s AlertStack,
    workload: harness::Workload,
    pid: String,
}

impl<'s> Leak<'s> {
    fn start(stack: &'s AlertStack) -> Self {
        let workload = stack.env.workload(&["leaks", "fast-leak", "--seconds", "300"]);
        let pid = workload.pid().to_string();
        Self { stack, workload, pid }
    }

    fn stop(&mut self) {
        self.workload.child.kill().unwrap();
    }

    /// Whether the agent's metrics have it as a suspect.
    fn is_suspect(&self) -> Option<()> {
        let metrics = self.stack.agent.metrics();
        let pid = format!("pid=\"{}\"", self.pid);
        metrics.lines("vramscope_suspect_growth_bytes_per_second", &[&pid]).next().map(|_| ())
    }

    /// Whether Alertmanager sent the alert of Prometheus.
    fn is_notified(&self, expected: &str) -> Option<()> {
        let mut alerts = self.stack.receiver.alerts("VramscopeLeakSuspect").into_iter();
        let is_own = |labels: &Value| labels["pid"] == self.pid.as_str();
        alerts.any(|(state, labels)| state == expected && is_own(&labels)).then_some(())
    }

    /// Returns the posts of the agent's webhook about it.
    fn posts(&self) -> Vec<Value> {
        let posts = self.stack.receiver.posts("/json").into_iter();
        let ours = |post: &Value| {
            post["rule"] == "leak_suspect" && post["labels"]["pid"] == self.pid.as_str()
        };
        posts.filter(ours).collect()
    }

    fn post(&self, state: &str) -> Option<Value> {
        self.posts().into_iter().find(|post| post["state"] == state)
    }

    /// Whether the agent's command ran for it.
    fn ran(&self, state: &str) -> Option<()> {
        let commands = self.stack.env.dir.path().join("commands");
        let line = format!("{state} leak_suspect {}", self.pid);
        let ran = std::fs::read_to_string(commands).ok()?;
        ran.lines().any(|found| found == line).then_some(())
    }
}

/// Asserts that an out-of-memory error is notified at once.
fn assert_out_of_memory(stack: &AlertStack) {
    let (_, _) = stack.env.workload(&["--device", "1", "oom", "--chunk-mb", "300"]).finish();
    stack.until("the error in Prometheus", || {
        let alerts = stack.receiver.alerts("VramscopeOutOfMemory");
        let of_it = |labels: &Value| labels["gpu"] == "1";
        let (_, labels) =
            alerts.into_iter().find(|(state, labels)| state == "firing" && of_it(labels))?;
        (labels["severity"] == "critical").then_some(())
    });
    stack.until("the agent's own alert", || {
        let mut posts = stack.receiver.posts("/json").into_iter();
        posts.find(|post| post["rule"] == "out_of_memory" && post["labels"]["gpu"] == "1")
    });
}

#[test]
fn leak_alert_fires_and_resolves_on_all_paths() {
    let stack = AlertStack::set();
    stack.until("the agent", || {
        (stack.agent.metrics().sum("vramscope_ready", &[]) == 1.0).then_some(())
    });
    stack.until("a scrape", || {
        stack.prometheus.query("vramscope_out_of_memory_total").filter(|found| !found.is_empty())
    });
    let mut leak = Leak::start(&stack);
    assert_out_of_memory(&stack);

    // The leak fires everywhere.
    stack.until("the suspect", || leak.is_suspect());
    stack.until("the alert in Prometheus", || {
        stack.alert_state("VramscopeLeakSuspect").filter(|state| state == "firing")
    });
    stack.until("Prometheus's alert through Alertmanager", || leak.is_notified("firing"));
    let post = stack.until("the webhook", || leak.post("firing"));
    // A line of the program; reports have the complete stack.
    assert!(post["labels"]["location"].as_str().unwrap().contains(".rs:"), "{post}");
    assert_eq!(post["labels"]["program"], "workload");
    stack.until("the command", || leak.ran("firing"));
    stack.until("the forecast", || stack.alert_state("VramscopeFullSoon"));
    assert_dashboard(&stack);

    // It resolves everywhere.
    leak.stop();
    stack.until("the resolution through Alertmanager", || leak.is_notified("resolved"));
    stack.until("the resolution by webhook", || leak.post("resolved"));
    stack.until("the resolution by command", || leak.ran("resolved"));
    let messages = stack.agent.messages();
    assert!(messages.contains("alert resolved: leak_suspect"), "{messages}");
    assert_eq!(leak.posts().len(), 2, "each state once: {:#?}", leak.posts());
    let metrics = stack.agent.metrics();
    let counted = ["receiver=\"command\"", "outcome=\"sent\""];
    let counted = metrics.sum("vramscope_notifications_total", &counted);
    assert!(counted > 0.0, "{}", metrics.0);
}
