//! The agent as its clients see it: metrics, the API, authentication and limits.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::agent::{Agent, Metrics, serve, settings};
use crate::harness::contract::{contract, type_of};
use crate::harness::environment::{Prometheus, certificate, secret};
use crate::harness::http::Response;
use crate::harness::{self, TestEnv, WAIT_TIMEOUT, Workload, compile};

const MIB: u64 = 1 << 20;

/// An environment whose devices exist: a first process creates them.
fn shared() -> TestEnv {
    let env = TestEnv::new().sharing();
    let env = env.env("SIM_CONTEXT_OVERHEAD", "100M").env("SIM_MEMORY", "4G");
    env.workload(&["hold", "--count", "1", "--size", "4096", "--wait-ms", "1"]).finish();
    for oracle in env.oracles().keys() {
        std::fs::remove_file(env.dir.path().join(format!("{oracle}.json"))).unwrap();
    }
    env
}

#[test]
fn metrics_match_the_driver() {
    let env = shared();
    let agent = Agent::start(&env, &[]);
    let holder = env.hold(0, 5, MIB);
    let pid = format!("pid=\"{}\"", holder.pid());
    let of = [pid.as_str(), "gpu=\"0\""];
    let metrics = agent.until("the driver report", |agent| {
        let metrics = agent.metrics();
        let used = metrics.sum("vramscope_process_used_bytes", &of);
        let reported = metrics.sum("vramscope_gpu_used_bytes", &["gpu=\"0\""]);
        (used > 104e6 && reported > 104e6).then_some(metrics)
    });
    let mib = f64::from(1 << 20);
    assert_eq!(metrics.sum("vramscope_process_live_bytes", &of), 5.0 * mib);
    assert_eq!(metrics.sum("vramscope_process_used_bytes", &of), 105.0 * mib);
    assert_eq!(metrics.sum("vramscope_process_untracked_bytes", &of), 100.0 * mib);
    assert_eq!(metrics.sum("vramscope_gpu_total_bytes", &["gpu=\"0\""]), 4096.0 * mib);
    assert_eq!(metrics.sum("vramscope_gpu_used_bytes", &["gpu=\"0\""]), 105.0 * mib);
    // Other processes may run on this host, on other devices.
    let live = metrics.sum("vramscope_gpu_live_bytes", &["gpu=\"0\""]);
    assert!(live >= 5.0 * mib);
    let untracked = metrics.sum("vramscope_gpu_untracked_bytes", &["gpu=\"0\""]);
    assert_eq!(untracked, 105.0 * mib - live);
    assert_eq!(metrics.sum("vramscope_process_allocations_total", &[&pid]), 5.0);
    agent.until("the site", |agent| {
        let sites = agent.api(&format!("sites?pid={}", holder.pid()));
        let id = sites["sites"][0]["id"].as_str()?;
        // Its id is a hash of its frames, once they are known.
        u64::from_str_radix(id, 16).ok().filter(|_| id.len() == 16)?;
        let site = format!("site=\"{id}\"");
        let live = agent.metrics().sum("vramscope_site_live_bytes", &[&site, "location=\""]);
        (live >= 5.0 * mib).then_some(())
    });
    holder.signal(15);
    holder.finish();
    let held = ["--hold-ms", "4000"];
    let mut workloads = Vec::new();
    for arguments in [
        &["random", "--ops", "3000", "--threads", "4"][..],
        &["kinds"],
        &["leak3", "--work-ms", "5", "--wait-ms", "1"],
    ] {
        workloads.push(env.workload(&[&held, arguments].concat()));
    }
    assert_metrics_match(&agent, &env, workloads);
    let workload =
        env.workload(&[&held, &["oom", "--chunk-mb", "700", "--wait-ms", "1"][..]].concat());
    let metrics = assert_metrics_match(&agent, &env, vec![workload]);
    assert!(metrics.sum("vramscope_out_of_memory_total", &["gpu=\"0\""]) >= 1.0);
    let expected: f64 =
        env.oracles().values().map(|oracle| oracle["allocations"].as_f64().unwrap()).sum();
    agent.until("the end of all", |agent| {
        let all = agent.metrics().sum("vramscope_allocations_total", &[]);
        (all >= expected).then_some(())
    });
    assert!(agent.end(15).contains("listening on http://127.0.0.1"));
}

/// Follows processes to their end: the last values of each, while it is idle, must match the
/// oracle and be exact. Returns the last metrics of one of them.
///
/// The agent's own loss counters are not checked: they include losses of other processes of this
/// host, and launches that may have been captured when a thread destroyed a context while another
/// captured.
fn assert_metrics_match(agent: &Agent, env: &TestEnv, mut workloads: Vec<Workload>) -> Metrics {
    let mut last: BTreeMap<u32, (Metrics, Value)> = BTreeMap::new();
    let label = |pid: u32| format!("pid=\"{pid}\"");
    let allocations = "vramscope_process_allocations_total";
    agent.until("the end of the processes", |agent| {
        let have_exited =
            workloads.iter_mut().all(|workload| workload.child.try_wait().unwrap().is_some());
        for workload in &workloads {
            let (metrics, snapshot) = (agent.metrics(), agent.api("snapshot"));
            let mut processes = snapshot["processes"].as_array().unwrap().iter();
            let process = processes.find(|process| process["pid"] == workload.pid());
            let is_listed = metrics.lines(allocations, &[&label(workload.pid())]).next().is_some();
            if let Some(process) = process.filter(|_| is_listed) {
                last.insert(workload.pid(), (metrics, process.clone()));
            }
        }
        have_exited.then_some(())
    });
    for workload in &workloads {
        let (pid, oracle) = (workload.pid(), env.oracle(workload.pid()));
        let (metrics, process) = &last[&pid];
        assert_eq!(process["exact"], true, "{process}");
        for (name, field) in [
            (allocations, "allocations"),
            ("vramscope_process_frees_total", "frees"),
            ("vramscope_process_failed_allocations_total", "failed_allocations"),
            ("vramscope_process_live_bytes", "live_bytes"),
        ] {
            let expected = oracle[field].as_f64().unwrap();
            assert_eq!(metrics.sum(name, &[&label(pid)]), expected, "{name} of {oracle}");
        }
    }
    last.into_values().next_back().unwrap().0
}

#[test]
fn hostile_names_are_escaped_in_labels() {
    let env = TestEnv::new();
    let agent = Agent::start(&env, &[]);
    let program = env.dir.path().join("named");
    compile("named.c", &program, &["-ldl"]);
    let mut command = env.command(&program);
    let mut workload = Workload::start(command.arg("a\"} 1\n\x1b[2J\\"));
    workload.wait_ready();
    let pid = format!("pid=\"{}\"", workload.pid());
    let metrics = agent.until("the process", |agent| {
        let metrics = agent.metrics();
        (metrics.sum("vramscope_process_live_bytes", &[&pid]) > 0.0).then_some(metrics)
    });
    let line = metrics.lines("vramscope_process_allocations_total", &[&pid]).next().unwrap();
    assert!(line.contains(r#"process="a\"} 1??[2J\\","#), "{line}");
    for line in metrics.0.lines() {
        let is_known = ["vramscope_", "process_", "# "].iter().any(|begin| line.starts_with(begin));
        assert!(is_known, "{line:?}");
        assert!(!line.contains('\x1b'), "{line:?}");
    }
    let listed = agent.get("/api/v1/processes");
    assert!(!listed.text().contains('\x1b'));
    let listed = listed.json();
    let name = &harness::process(&listed, workload.pid())["name"];
    assert_eq!(*name, "a\"} 1\\u{a}\\u{1b}[2J\\");
}

#[test]
fn requests_need_the_configured_token() {
    let env = TestEnv::new();
    let file = env.dir.path().join("token");
    secret(&file, "0123456789abcdef-secret\n");
    let mut agent = Agent::start(&env, &["--token-file", file.to_str().unwrap()]);
    assert_eq!(agent.get("/healthz").status, 200);
    for path in ["/api", "/metrics", "/api/v1/snapshot", "/api/v1/status", "/nowhere", "/healthz/x"]
    {
        for wrong in [
            "",
            "authorization: Bearer wrong\r\n",
            "authorization: Basic 0123456789abcdef-secret\r\n",
            "authorization: 0123456789abcdef-secret\r\n",
            "authorization: Bearer 0123456789abcdef-secret2\r\n",
        ] {
            let response = agent.get_with(path, wrong);
            assert_eq!(response.status, 401, "{path} {wrong}: {response:?}");
            assert!(response.head.contains("www-authenticate: bearer"), "{response:?}");
            assert!(response.json()["hint"].as_str().unwrap().contains("Bearer"));
        }
    }
    agent.headers = "authorization: bearer 0123456789abcdef-secret\r\n".into();
    agent.until("a snapshot", |agent| (agent.get("/metrics").status == 200).then_some(()));
    assert_eq!(agent.api("status")["ready"], true);
    // A client with the token may use any host name.
    let named = "GET /metrics HTTP/1.1\r\nhost: gpu7.example\r\nconnection: close\r\n";
    assert_eq!(agent.raw(&format!("{named}{}\r\n", agent.headers)).status, 200);
    assert!(!agent.end(15).contains("secret"));
}

/// Returns the error of an agent that does not start.
fn start_error(env: &TestEnv, arguments: &[&str]) -> String {
    let mut command = serve(env, arguments);
    let output = command.stdout(Stdio::null()).output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{messages}");
    assert!(!messages.contains("attached to"), "attached: {messages}");
    messages
}

#[test]
fn unsafe_configurations_do_not_start() {
    let env = TestEnv::new();
    assert!(start_error(&env, &["--listen", "0.0.0.0:0"]).contains("token"));
    assert!(start_error(&env, &["--listen", "[::]:0"]).contains("token"));
    let file = env.dir.path().join("token");
    secret(&file, "0123456789abcdef");
    let path = file.to_str().unwrap();
    assert!(Command::new("chmod").args(["644", path]).status().unwrap().success());
    assert!(start_error(&env, &["--token-file", path]).contains("chmod 600"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let messages = start_error(&env, &["--listen", &address]);
    assert!(messages.contains(&format!("cannot listen on {address}")), "{messages}");
    let text = "[http]\ntls_cert_file = \"/nowhere.pem\"\ntls_key_file = \"/nowhere.key\"\n";
    assert!(start_error(&env, &["--config", &settings(&env, text)]).contains("/nowhere.pem"));
}

fn curl(arguments: &[&str]) -> (bool, String) {
    let output = Command::new("curl").args(["-sS", "--max-time", "20"]).args(arguments).output();
    let output = output.expect("curl");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn responses_are_encrypted_with_a_certificate() {
    let env = TestEnv::new();
    let (certificate, key) = certificate(env.dir.path());
    let text = format!("[http]\ntls_cert_file = {certificate:?}\ntls_key_file = {key:?}\n");
    let mut command = serve(&env, &["--config", &settings(&env, &text)]);
    let agent = Agent::begin(&mut command, env.dir.path());
    assert!(agent.messages().contains("listening on https://"), "{}", agent.messages());
    let url = format!("https://{}/metrics", agent.address);
    let metrics = agent.until("metrics", |_| {
        let (fine, text) = curl(&["--cacert", &certificate, &url]);
        (fine && text.contains("# EOF")).then_some(text)
    });
    assert!(metrics.contains("\nvramscope_exact "));
    assert!(!curl(&[&url]).0, "an untrusted certificate was accepted");
    let plain = agent.get("/healthz");
    assert_ne!(plain.status, 200, "{plain:?}");
    // A client that sends nothing does not block others.
    let silent: Vec<_> = (0..20).map(|_| agent.connect()).collect();
    assert!(curl(&["--cacert", &certificate, &url]).0);
    drop(silent);
    agent.end(15);
}

fn error(response: &Response, status: u16) {
    assert_eq!(response.status, status, "{response:?}");
    let fields = response.json();
    assert!(fields["error"].is_string() && fields["hint"].is_string(), "{response:?}");
}

#[test]
fn requests_beyond_the_limits_are_rejected() {
    let env = TestEnv::new();
    let agent = Agent::start(&env, &[]);
    let request = |line: &str, more: &str| {
        agent.raw(&format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}"))
    };
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"] {
        error(&request(&format!("{method} /metrics"), "content-length: 2\r\n\r\nhi"), 405);
    }
    error(&request("GET /metrics", "content-length: 2\r\n\r\nhi"), 413);
    error(&request("GET /metrics", "transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"), 413);
    let long = "x".repeat(40_000);
    assert_eq!(request("GET /metrics", &format!("long: {long}\r\n\r\n")).status, 431);
    let many: String = (0..100).map(|nth| format!("h{nth}: x\r\n")).collect();
    assert_eq!(request("GET /metrics", &format!("{many}\r\n")).status, 431);
    assert!(matches!(request(&format!("GET /{long}"), "\r\n").status, 414 | 431));
    assert_eq!(agent.raw("nonsense\r\n\r\n").status, 400);
    for path in [
        "/../etc/passwd",
        "/api/v1/../../etc/passwd",
        "/api/v1/incidents/../../../etc/passwd",
        "/api/v1/incidents/..%2f..%2fetc/passwd",
        "/api/v1/incidents/%2e%2e/passwd",
        "/api/v1/incidents//etc/passwd",
        "/api/v1/incidents/x/../../x",
        "//etc/passwd",
        "/api/v1/processes/0x1",
        "/api/v1/processes/-1",
        "/api/v2/snapshot",
        "/API/V1/snapshot",
        "/metrics/",
    ] {
        error(&agent.get(path), 404);
    }
    error(&agent.get("/api/v1/processes/4294967295"), 404);
    for query in ["limit=0", "limit=99999", "top=3", "pid=x", "sort=size"] {
        error(&agent.get(&format!("/api/v1/processes?{query}")), 400);
    }
    for path in ["gpus", "advice", "status", "snapshot", "processes/1", "profile.pb.gz"] {
        error(&agent.get(&format!("/api/v1/{path}?limit=3")), 400);
    }
    for path in ["/metrics?x=1", "/debug/pprof/heap?seconds=5", "/api/v1/alerts?pid=1&limit=1"] {
        assert_eq!(request(&format!("HEAD {path}"), "\r\n").status, 200, "{path}");
    }
    let host = |host: &str| {
        agent.raw(&format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"))
    };
    error(&host("evil.example"), 403);
    error(&host("127.0.0.1.evil.example:9754"), 403);
    assert_eq!(host("127.0.0.1:9754").status, 200);
    let absolute =
        "GET http://evil.example/metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    error(&agent.raw(absolute), 403);
    let head = request("HEAD /metrics", "\r\n");
    assert_eq!((head.status, &*head.text()), (200, ""));
    for header in [
        "x-content-type-options: nosniff",
        "cache-control: no-store",
        "content-security-policy: default-src 'none'",
        "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8",
    ] {
        assert!(head.head.contains(header), "{head:?}");
    }
    agent.end(15);
}

#[test]
fn slow_and_excess_clients_are_closed() {
    let env = TestEnv::new();
    let agent = Agent::start(&env, &[]);
    // Headers, one byte at a time.
    let start = Instant::now();
    let mut slow = agent.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let mut idle = agent.connect();
    slow.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let is_waiting = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
    while slow.write_all(b"x").is_ok() {
        let read = slow.read(&mut [0; 64]);
        if !(read.as_ref().is_ok_and(|read| *read > 0) || read.is_err_and(|e| is_waiting(&e))) {
            break;
        }
        assert!(start.elapsed() < WAIT_TIMEOUT, "the connection was never closed");
    }
    assert!(start.elapsed() > Duration::from_secs(5));
    let mut rest = Vec::new();
    assert_eq!(idle.read_to_end(&mut rest).unwrap_or(0), rest.len());
    // With any number of idle clients, a request is answered: the oldest idle ones are closed.
    let clients: Vec<_> = (0..300).map(|_| agent.connect()).collect();
    for path in ["/healthz", "/readyz", "/metrics", "/api/v1/status"] {
        assert_eq!(agent.get(path).status, 200, "{path}");
    }
    let ended = |stream: &std::net::TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let mut stream: &std::net::TcpStream = stream;
        stream.read(&mut [0; 64]).is_ok_and(|read| read == 0)
    };
    agent.until("the end of the first", |_| clients[..40].iter().all(ended).then_some(()));
    assert!(!clients[290..].iter().any(ended));
    agent.end(15);
}

#[test]
fn program_paths_are_shown_only_if_configured() {
    let env = TestEnv::new();
    let paths = |agent: &Agent| {
        let sites = agent.until("frames", |agent| {
            let sites = agent.api("sites");
            let mut all = sites["sites"].as_array()?.iter();
            let resolved = all.any(|site| site["frames"][0].is_object());
            resolved.then_some(sites)
        });
        let snapshot = agent.api("snapshot");
        (
            sites.to_string().contains("/sim/workload"),
            snapshot.to_string().contains("/sim/workload"),
        )
    };
    for (text, shown) in [("", false), ("[http]\nshow_paths = true\n", true)] {
        let agent = Agent::start_with(&env, text, &[]);
        let _workload = env.hold(0, 2, 4096);
        assert_eq!(paths(&agent), (shown, shown));
        let metrics = agent.metrics();
        assert!(!metrics.0.contains("/sim/"), "{}", metrics.0);
        agent.end(15);
    }
}

#[test]
fn prometheus_scrapes_the_agent() {
    let env = TestEnv::new();
    let agent = Agent::start(&env, &[]);
    let workload = env.hold(0, 3, MIB);
    let prometheus = Prometheus::start(env.dir.path(), &agent.address, "");
    let query = format!("vramscope_process_live_bytes{{pid=\"{}\"}}", workload.pid());
    let found = agent.until("a scrape", |_| {
        let found = prometheus.query(&query)?.first()?.clone();
        (found["value"][1] == "3145728").then_some(found)
    });
    assert_eq!(found["metric"]["process"], "workload");
    assert_eq!(prometheus.query("up").unwrap()[0]["value"][1], "1");
    agent.end(15);
}

/// Returns the processor time of the HTTP thread.
fn http_cpu_time(agent: &Agent) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let read = |task: &Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap();
    let http = tasks.map(|task| task.unwrap().path()).find(|task| read(task, "comm") == "http\n");
    let times = read(&http.unwrap(), "schedstat");
    Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn http_load_loses_no_events() {
    let env = TestEnv::new();
    let agent = Agent::start(&env, &[]);
    // Clients that never finish their request, or never read their response.
    let mut slow: Vec<_> = (0..16).map(|_| agent.connect()).collect();
    for (nth, stream) in slow.iter_mut().enumerate() {
        let request = "GET /api/v1/snapshot HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let part = if nth % 2 == 0 { &request[..20] } else { request };
        stream.write_all(part.as_bytes()).unwrap();
    }
    let spam = ["--hold-ms", "4000", "spam", "--throughput", "4000", "--duration", "6"];
    let workload = env.workload(&spam);
    let pid = workload.pid();
    let url = |path: &str| format!("http://{}{path}", agent.address);
    let load: Vec<_> = [url("/metrics"), url("/api/v1/snapshot")]
        .into_iter()
        .map(|url| {
            let arguments = ["-c", "32", "-t", "1", "-d", "5s", url.as_str()];
            let wrk = Command::new("wrk").args(arguments).stdout(Stdio::piped()).spawn();
            wrk.expect("wrk, of the package of that name")
        })
        .collect();
    let (start, before) = (Instant::now(), http_cpu_time(&agent));
    for wrk in load {
        let output = wrk.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("requests in"), "{text}");
        assert!(!text.contains("Non-2xx"), "{text}");
    }
    // They get a twentieth of a core and the saved-up time, and no more.
    let (took, time) = (http_cpu_time(&agent).checked_sub(before).unwrap(), start.elapsed());
    assert!(took < time / 20 + Duration::from_millis(300), "{took:?} of {time:?}");
    let metrics = assert_metrics_match(&agent, &env, vec![workload]);
    assert!(env.oracle(pid)["allocations"].as_f64().unwrap() > 8000.0);
    assert!(metrics.sum("vramscope_http_requests_total", &["code=\"2xx\""]) > 500.0);
    agent.end(15);
}

/// Collects every field of a response by its path; objects that are described on another page are
/// skipped.
fn fields(value: &Value, path: &str, all: &mut Vec<(String, &'static str)>) {
    const ELSEWHERE: [&str; 5] = ["processes", "sites", "suspects", "process", "labels"];
    let Value::Object(object) = value else { return };
    for (name, value) in object {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        all.push((path.clone(), type_of(value)));
        if ELSEWHERE.contains(&name.as_str()) {
            continue;
        }
        fields(value, &path, all);
        value
            .as_array()
            .into_iter()
            .flatten()
            .for_each(|item| fields(item, &format!("{path}[]"), all));
    }
}

#[test]
fn api_responses_match_the_documentation() {
    let env = shared();
    let agent = Agent::start(&env, &[]);
    // Another process that allocates at the same site is not counted with it.
    let _other = env.hold(0, 2, MIB);
    let workload = env.hold(0, 3, MIB);
    let pid = workload.pid();
    agent.until("the process", |agent| {
        let response = agent.get(&format!("/api/v1/processes/{pid}"));
        (response.is_good() && response.json()["process"]["live_bytes"] == 3 << 20).then_some(())
    });
    let contract = contract("docs/reference/http-api.md");
    let described = |name: &str| contract.contains_key(name);
    assert!(
        ["api", "gpus[].uuid", "requests.client_errors", "files[].name"].into_iter().all(described)
    );
    // Complete lists of objects that are described field by field.
    let lists = ["processes", "sites", "suspects", "gpus", "alerts", "incidents"];
    let mut wrong = BTreeSet::new();
    let one = format!("processes/{pid}");
    for path in lists.into_iter().chain(["status", one.as_str()]) {
        let response = agent.api(path);
        let mut found = Vec::new();
        fields(&response, "", &mut found);
        for (field, is) in &found {
            match contract.get(field) {
                Some((types, _)) if types.split(" or ").any(|one| one == *is) => {}
                Some((types, _)) => {
                    wrong.insert(format!("{path}: {field} is {is}, not {types}"));
                }
                None if lists.contains(&field.as_str()) => {}
                None => {
                    wrong.insert(format!("{path}: {field} ({is}) is not described"));
                }
            }
        }
        for always in ["api", "time", "exact"] {
            assert!(found.iter().any(|(field, _)| field == always), "{path} has no {always}");
        }
        if lists.contains(&path) {
            // No limit was given.
            assert_eq!(
                response["total"].as_u64().unwrap(),
                response[path].as_array().unwrap().len() as u64
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let status = agent.api("status");
    for field in ["version", "ready", "uptime_seconds", "degraded", "lost_events", "memory_bytes"] {
        assert!(!status[field].is_null(), "{status}");
    }
    assert_eq!(agent.api(&one)["process"]["pid"], pid);
    assert_eq!(agent.api(&format!("sites?pid={pid}&limit=1"))["sites"][0]["live_bytes"], 3 << 20);
    assert_eq!(agent.api("sites?pid=4294967295")["total"], 0);
    assert_eq!(agent.api("gpus")["gpus"][0]["total_bytes"], 4_u64 << 30);
    // The response is the output of `trace --json`, and the version.
    let snapshot = agent.api("snapshot");
    assert_eq!(snapshot["api"], "v1");
    let process = harness::process(&snapshot, pid);
    assert_eq!((&process["live_bytes"], &process["exact"]), (&(3 << 20).into(), &true.into()));
    assert!(process["threads"].is_array());
    agent.end(15);
}
