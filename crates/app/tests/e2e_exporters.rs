//! Exported data, accepted by test servers and read by other readers: OpenTelemetry's own messages,
//! Google's protocol buffers, DuckDB and pyarrow. It must match the driver's oracle.

#[path = "exporters/receiver.rs"]
mod receiver;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use receiver::Receiver;
use serde_json::Value;

use crate::harness::agent::{self, Agent};
use crate::harness::environment::{Disk, certificate, secret};
use crate::harness::files::{blocks, read, root, script, stderr, stdout, tool};
use crate::harness::{TestEnv, Workload};

fn env() -> TestEnv {
    TestEnv::new().sharing().env("SIM_CONTEXT_OVERHEAD", "100M")
}

/// Starts a program that trains, and keeps its memory until it is ended.
fn train(env: &TestEnv) -> Workload {
    env.workload(&["--hold-ms", "600000", "train", "--steps", "40", "--step-ms", "2"])
}

/// Sums the samples of a process in a profile: in use, then allocated; bytes and allocations.
fn sums(profile: &Value, pid: u32) -> [u64; 4] {
    let mut sums = [0; 4];
    for sample in profile["samples"].as_array().unwrap() {
        if sample["labels"]["pid"] == pid {
            let value = |index: usize| sample["values"][index].as_u64().unwrap();
            for (sum, index) in sums.iter_mut().zip([3, 2, 1, 0]) {
                *sum += value(index);
            }
        }
    }
    sums
}

/// Returns the files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "part")
}

fn device_allocations(oracle: &Value) -> u64 {
    let device = ["device", "array", "physical", "async", "graph"];
    let is_device = |one: &&Value| device.contains(&one["kind"].as_str().unwrap());
    oracle["live"].as_array().unwrap().iter().filter(is_device).count() as u64
}

/// Results of a run: receivers, directories, and the oracle of the process.
struct Run {
    env: TestEnv,
    otlp: Receiver,
    pid: u32,
    oracle: Value,
    /// The profile that was pulled while the process only held its memory.
    profile: Value,
    messages: String,
}

/// Runs a program under an agent with every exporter.
fn run() -> Run {
    let env = env();
    let base = env.dir.path().to_owned();
    let otlp = Receiver::start(base.join("otlp"), &["503,200"]);
    secret(&base.join("token"), "s3cret\n");
    let settings = format!(
        "[exporters.otlp]\nendpoint = \"http://127.0.0.1:{}/\"\ninterval = \"1s\"\n\
         resource_attributes = {{ \"k8s.cluster.name\" = \"lab\" }}\nusername = \"me\"\n\
         password_file = \"{base}/token\"\n\
         [exporters.parquet]\ndir = \"{base}/lake\"\ninterval = \"1s\"\nrotate_interval = \"3s\"\n",
        otlp.port,
        base = base.display()
    );
    let agent = Agent::start_with(&env, &settings, &[]);
    let workload = train(&env);
    let pid = workload.pid();
    let pull = |path: &str| {
        let file = base.join(path.rsplit('/').next().unwrap());
        let response = agent.get(path);
        assert_eq!(response.status, 200, "{response:?}");
        fs::write(&file, response.body).unwrap();
        script("profile/read_pprof.py", &[file.to_str().unwrap()])
    };
    let mut last = [0; 4];
    let profile = agent.until("a process that only holds its memory", |_| {
        let profile = pull("/debug/pprof/heap");
        let now = sums(&profile, pid);
        let is_steady = now[0] > 0 && std::mem::replace(&mut last, now) == now;
        is_steady.then_some(profile)
    });
    assert_eq!(sums(&pull("/api/v1/profile.pb.gz"), pid), last, "the same profile");
    // The collector gets the final state at least once.
    let seen = otlp.count();
    agent.until("more exports", |_| (otlp.count() >= seen + 3).then_some(()));
    workload.signal(15);
    let (_, _) = workload.finish();
    // The end of the program is in a table, too.
    agent.until("the end of the program", |agent| {
        let processes = agent.api("processes")["processes"].as_array()?.clone();
        (!processes.iter().any(|process| process["pid"] == pid)).then_some(())
    });
    let messages = agent.end(15);
    let oracle = env.oracle(pid);
    Run { env, otlp, pid, oracle, profile, messages }
}

fn check_profile(run: &Run) {
    let Run { profile, pid, oracle, .. } = run;
    let [bytes, allocations, new_bytes, new] = sums(profile, *pid);
    assert_eq!(bytes, oracle["live_bytes"].as_u64().unwrap());
    assert_eq!(allocations, device_allocations(oracle));
    // This program only allocates device memory.
    assert_eq!(new, oracle["allocations"].as_u64().unwrap());
    assert!(new_bytes >= oracle["peak_bytes"].as_u64().unwrap());
    let own = profile["samples"].as_array().unwrap().iter();
    let own: Vec<_> = own.filter(|sample| sample["labels"]["pid"] == *pid).collect();
    assert!(own.iter().all(|sample| sample["labels"]["process"] == "workload"), "{own:?}");
    let stacks = serde_json::to_string(&own).unwrap();
    assert!(stacks.contains("workload::programs::threads::steps"), "{stacks}");
    let frames = own.iter().flat_map(|sample| sample["stack"].as_array().unwrap());
    for frame in frames {
        for index in [1, 3] {
            assert!(!frame[index].as_str().unwrap().contains('/'), "a directory in {frame}");
        }
    }
}

fn check_lake(run: &Run) {
    let dir = run.env.dir.path().join("lake");
    assert!(!files(&dir).iter().any(|path| is_unfinished(path)));
    // The same files again as those of another host.
    for file in files(&dir) {
        let other = file.to_str().unwrap();
        let (table, rest) = other.split_once("/host=").unwrap();
        let (_, rest) = rest.split_once('/').unwrap();
        let other = PathBuf::from(format!("{table}/host=other/{rest}"));
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        fs::copy(&file, other).unwrap();
    }
    let page = root().join("docs/operations/exporters.md");
    let arguments = [dir.to_str().unwrap(), page.to_str().unwrap()];
    let found = script("exporters/read_lake.py", &arguments);
    let rows_of = |table: &str| -> Vec<&Value> {
        let rows = found[table].as_array().unwrap().iter();
        rows.filter(|row| row["host"] != "other" && row["pid"] == run.pid).collect()
    };
    let last = rows_of("processes").into_iter().max_by_key(|row| row["micros"].as_i64()).unwrap();
    for (column, field) in [
        ("live_bytes", "live_bytes"),
        ("peak_bytes", "peak_bytes"),
        ("allocations_total", "allocations"),
        ("frees_total", "frees"),
    ] {
        assert_eq!(last[column], run.oracle[field], "{column}: {last}");
    }
    assert_eq!((&last["exact"], &last["process"]), (&true.into(), &"workload".into()));
    let at = |rows: Vec<&Value>| -> u64 {
        let rows = rows.into_iter().filter(|row| row["micros"] == last["micros"]);
        rows.map(|row| row["live_bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(at(rows_of("devices")), run.oracle["live_bytes"].as_u64().unwrap());
    assert_eq!(at(rows_of("sites")), run.oracle["live_bytes"].as_u64().unwrap());
    let device = rows_of("devices").into_iter().max_by_key(|row| row["micros"].as_i64()).unwrap();
    assert_eq!(device["untracked_bytes"], 100 << 20, "{device}");
    let peak = rows_of("peaks").into_iter().find(|row| row["ended"] == true).unwrap();
    assert_eq!(peak["peak_bytes"], run.oracle["peak_bytes"], "{peak}");
    let gpus = found["gpus"].as_array().unwrap().iter();
    let gpus = gpus.filter(|row| row["host"] != "other" && row["micros"] == last["micros"]);
    let live: u64 = gpus.map(|row| row["live_bytes"].as_u64().unwrap()).sum();
    assert_eq!(live, run.oracle["live_bytes"].as_u64().unwrap());
    let prints = rows_of("sites").into_iter().map(|row| row["fingerprint"].as_str());
    assert!(prints.flatten().all(|hash| hash.len() == 16));
    check_columns(&found["columns"]);
    check_query_results(&found["query_results"], run);
}

/// Asserts that the documented tables are those that DuckDB finds.
fn check_columns(columns: &Value) {
    let page = read("docs/operations/exporters.md");
    let mut documented: BTreeMap<&str, Vec<Vec<String>>> = BTreeMap::new();
    let mut table = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("**") {
            table = rest.split("**").next().unwrap();
        }
        let mut cells = line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
        let row: Vec<String> = cells.by_ref().skip(1).take(2).collect();
        let is_type = |row: &Vec<String>| row[1].chars().next().is_some_and(char::is_uppercase);
        if line.starts_with("| `") && row.len() == 2 && is_type(&row) {
            documented.entry(table).or_default().push(row);
        }
    }
    let sample: Vec<_> = documented["gpus"][..4].to_vec();
    let process: Vec<_> = documented["processes"][..10].to_vec();
    assert_eq!(process[9][0], "namespace");
    for table in ["processes", "devices", "sites", "suspects", "peaks", "incidents"] {
        let own = documented.remove(table).unwrap();
        let of_process =
            if matches!(table, "processes" | "incidents") { vec![] } else { process.clone() };
        documented.insert(table, [sample.clone(), of_process, own].concat());
    }
    assert_eq!(documented.len(), 8, "{documented:?}");
    for (table, rows) in columns.as_object().unwrap() {
        let rows: Vec<Vec<String>> = serde_json::from_value(rows.clone()).unwrap();
        assert_eq!(documented[&**table], rows, "{table}");
    }
}

/// Asserts that the documented queries find both hosts and the program.
fn check_query_results(results: &Value, run: &Run) {
    let results = results.as_array().unwrap();
    assert_eq!(results.len(), 4);
    let peaks = results[0]["rows"].as_array().unwrap();
    let own = peaks.iter().filter(|row| row[2] == run.pid.to_string().as_str());
    let own: Vec<_> = own.collect();
    assert_eq!(own.len(), 2, "{peaks:?}");
    assert!(own.iter().any(|row| row[0] == "other") && own[0][3] == own[1][3], "{own:?}");
    let untracked = results[3]["rows"].as_array().unwrap();
    // The maximum may be of a moment at which the driver's value was newer than the records.
    let bytes = |row: &Value| row[3].as_str().unwrap().parse::<u64>().unwrap();
    assert!(untracked.iter().any(|row| bytes(row) >= 100 << 20), "{untracked:?}");
    for result in &results[1..3] {
        assert!(!result["rows"].as_array().unwrap().is_empty(), "{result}");
    }
}

fn check_otlp(run: &Run) {
    let Run { otlp, pid, oracle, .. } = run;
    assert_eq!(fs::read(otlp.body(0).unwrap()).unwrap(), fs::read(otlp.body(1).unwrap()).unwrap());
    let (first, second) = (otlp.head(0), otlp.head(1));
    assert_eq!((&first["status"], &second["status"]), (&503.into(), &200.into()));
    assert_eq!(second["path"], "/v1/metrics");
    assert_eq!(second["headers"]["content-type"], "application/x-protobuf");
    // `me:s3cret` in Python's base64.
    assert_eq!(second["headers"]["authorization"], "Basic bWU6czNjcmV0");
    let mut live = Vec::new();
    let mut counted = Vec::new();
    let mut last = Value::Null;
    for number in 1..otlp.count() {
        let body = otlp.body(number).unwrap();
        let request = script("exporters/read_otlp.py", &[&body, "gzip"]);
        let resource = &request["resource"];
        assert_eq!(
            (&resource["service.name"], &request["scope"]),
            (&"vramscope".into(), &"vramscope".into())
        );
        assert_eq!(resource["k8s.cluster.name"], "lab");
        assert!(!resource["host.name"].as_str().unwrap().is_empty());
        let own_value = |metric: &str| -> Option<u64> {
            let points = request["metrics"][metric]["points"].as_array()?.iter();
            let own = points.filter(|point| point["attributes"]["process.pid"] == *pid);
            Some(own.map(|point| point["value"].as_u64().unwrap()).sum())
        };
        live.extend(own_value("vramscope.process.live"));
        counted.extend(own_value("vramscope.process.allocations"));
        last = request;
    }
    assert!(live.contains(&oracle["live_bytes"].as_u64().unwrap()), "{live:?}");
    assert!(counted.contains(&oracle["allocations"].as_u64().unwrap()), "{counted:?}");
    let limit = &last["metrics"]["hw.gpu.memory.limit"];
    assert_eq!((&limit["form"], &limit["unit"]), (&"level".into(), &"By".into()));
    let first = &limit["points"][0];
    assert_eq!(first["value"], 24_u64 << 30, "{limit}");
    assert!(first["attributes"]["hw.id"].as_str().unwrap().starts_with("GPU-"), "{first}");
    let usage = last["metrics"]["hw.gpu.memory.usage"]["points"].as_array().unwrap();
    assert_eq!(usage.len(), limit["points"].as_array().unwrap().len());
    let sent = last["metrics"]["vramscope.exports"]["points"].as_array().unwrap().iter();
    let own = sent.filter(|point| {
        let attributes = &point["attributes"];
        attributes["vramscope.exporter"] == "otlp" && attributes["vramscope.outcome"] == "sent"
    });
    assert!(own.map(|point| point["value"].as_u64().unwrap()).sum::<u64>() >= 3, "{last}");
}

#[test]
fn every_exporter_sends_the_driver_values() {
    let run = run();
    check_profile(&run);
    check_lake(&run);
    check_otlp(&run);
    // The collector was busy once, and got the data later: that is not a failure.
    assert!(!run.messages.contains("cannot send"), "{}", run.messages);
}

/// Runs a program that leaks and one that fills a GPU, and returns the environment, their pids and
/// what the agent reported of the leak.
fn leak_and_fill() -> (TestEnv, [u32; 2], Value) {
    let env = env().env("SIM_MEMORY", "4G").env("SENTRY_RELEASE", "train@1.4.2");
    let dir = env.dir.path().join("lake");
    let settings = format!("[exporters.parquet]\ndir = \"{}\"\ninterval = \"1s\"\n", dir.display());
    let agent = Agent::start_with(&env, &settings, &[]);
    let leak = env.workload(&["leaks", "fast-leak", "--seconds", "300"]);
    let fill = env.workload(&["--device", "1", "oom", "--chunk-mb", "300"]);
    let (leaking, filling) = (leak.pid(), fill.pid());
    fill.finish();
    let suspect = agent.until("the suspect", |agent| {
        let suspects = agent.api("suspects")["suspects"].as_array()?.clone();
        suspects.into_iter().find(|one| one["pid"] == leaking)
    });
    agent.until("the incident", |agent| {
        let incidents = agent.api("incidents")["incidents"].as_array()?.clone();
        incidents.iter().any(|one| one["pid"] == filling).then_some(())
    });
    let sequence = |agent: &Agent| agent.api("status")["snapshots_total"].as_u64();
    let seen = sequence(&agent).unwrap();
    agent.until("more rows", |agent| (sequence(agent) > Some(seen + 2)).then_some(()));
    agent.end(15);
    drop(leak);
    (env, [leaking, filling], suspect)
}

/// Asserts that the views of the fleet have the leak and the incident. Their values are text.
fn check_views(found: &Value, leak: &Value) {
    let row = |view: &str, column: &str, value: &str| -> &Value {
        let rows = found[view].as_array().unwrap();
        rows.iter().find(|row| row[column] == value).unwrap_or_else(|| panic!("{view}: {rows:?}"))
    };
    let site = row("leaks_by_site", "fingerprint", leak["fingerprint"].as_str().unwrap());
    assert_eq!((&site["location"], &site["hosts"]), (&leak["location"], &"1".into()), "{site}");
    assert_eq!(site["live"], leak["live"].to_string(), "{site}");
    let incident = row("incidents_by_cause", "trigger", "out_of_memory");
    assert_eq!(incident["incidents"], "1", "{incident}");
    assert_eq!(row("growth_by_release", "release", "train@1.4.2")["growth_bytes"], Value::Null);
    let host = leak["host"].as_str().unwrap();
    assert_eq!(row("hosts_full_soon", "host", host)["gpu"], "0");
    assert_eq!(row("coverage_by_host", "host", host)["agent_starts"], "1");
    for view in ["site_growth_by_release", "waste_by_pod", "cost_by_program"] {
        row(view, "program", "workload");
    }
}

#[test]
fn leaks_and_incidents_are_rows() {
    let (env, [leaking, filling], suspect) = leak_and_fill();
    let (dir, pack) = (env.dir.path().join("lake"), root().join("contrib/fleet"));
    let arguments = [dir.to_str().unwrap(), pack.to_str().unwrap()];
    let found = script("exporters/read_lake.py", &arguments);
    let rows = |table: &str, pid: u32| -> Vec<&Value> {
        let rows = found[table].as_array().unwrap().iter();
        rows.filter(|row| row["pid"] == pid).collect()
    };
    let suspects = rows("suspects", leaking);
    let last = suspects.iter().max_by_key(|row| row["micros"].as_i64()).unwrap();
    for (column, field) in [("site", "site"), ("kind", "kind"), ("process", "process")] {
        assert_eq!(last[column], suspect[field], "{column}: {last} {suspect}");
    }
    assert_eq!((&last["resource"], &last["gpu"]), (&"device_memory".into(), &0.into()), "{last}");
    assert!(last["growth_per_hour"].as_u64() > Some(0), "{last}");
    // The same site is in the other table at the same time, with the same values.
    let site = rows("sites", leaking)
        .into_iter()
        .find(|row| (&row["site"], &row["micros"]) == (&last["site"], &last["micros"]));
    let site = site.unwrap();
    assert_eq!((&site["live_bytes"], &site["verdict"]), (&last["live"], &"leak".into()), "{site}");
    assert_eq!(site["fingerprint"], last["fingerprint"]);
    let incidents = rows("incidents", filling);
    let [incident] = incidents[..] else { panic!("{incidents:?}") };
    assert_eq!(incident["trigger"], "out_of_memory", "{incident}");
    assert_eq!((&incident["gpu"], &incident["process"]), (&1.into(), &"workload".into()));
    assert_eq!(incident["requested_bytes"], 300_u64 << 20, "{incident}");
    assert!(incident["cause"].is_string() && incident["errors"].as_u64() > Some(0), "{incident}");
    let ended = rows("peaks", filling).into_iter().find(|row| row["ended"] == true).unwrap();
    assert_eq!(ended["peak_bytes"], env.oracle(filling)["peak_bytes"], "{ended}");
    for row in [last, &incident, &ended] {
        assert_eq!(row["release"], "train@1.4.2", "{row}");
        assert_eq!(row["program"], "workload", "{row}");
    }
    check_views(&found, last);
    // No time is missing: the samples add up to the time between the first and the last one.
    let samples: BTreeMap<i64, f64> = found["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["micros"].as_i64().unwrap(), row["covers_seconds"].as_f64().unwrap()))
        .collect();
    let (first, newest) = (samples.keys().next().unwrap(), samples.keys().last().unwrap());
    let covered: f64 = samples.values().sum();
    assert!((covered - (newest - first) as f64 / 1e6).abs() < 0.01, "{samples:?}");
}

/// Wrong clocks, missing and repeated files, restarted agents, reused pids, and other versions, with
/// known answers.
#[test]
fn fleet_views_give_the_known_answers() {
    let dir = tempfile::tempdir().unwrap();
    let cases = root().join("experiments/verify/exporters/cases.py");
    let output = tool("python").arg("-B").arg(cases).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert_eq!(stdout(&output).matches("ok    duckdb").count(), 26, "{}", stdout(&output));
}

#[test]
fn killed_agent_loses_only_the_open_file() {
    let env = env();
    let lake = env.dir.path().join("lake");
    let settings = |rotate_interval: &str| {
        let dir = lake.display();
        format!(
            "[exporters.parquet]\ndir = \"{dir}\"\ninterval = \"1s\"\nrotate_interval = \"{rotate_interval}\"\n"
        )
    };
    let agent = Agent::start_with(&env, &settings("1s"), &[]);
    let workload = train(&env);
    let finished = || -> Vec<PathBuf> {
        files(&lake).into_iter().filter(|path| !is_unfinished(path)).collect()
    };
    let count_of =
        |name: &str| finished().iter().filter(|path| path.starts_with(lake.join(name))).count();
    agent.process(workload.pid(), |process| process["live_allocations"].as_u64() > Some(0));
    let earlier = count_of("processes");
    agent.until("three files", |_| (count_of("processes") >= earlier + 3).then_some(()));
    agent.until("an unfinished file", |_| {
        files(&lake).iter().any(|path| is_unfinished(path)).then_some(())
    });
    agent.end(9);
    let before = finished();
    let unfinished: Vec<_> = files(&lake).into_iter().filter(|path| is_unfinished(path)).collect();
    let rows = script("exporters/read_lake.py", &[lake.to_str().unwrap()]);
    assert!(rows["processes"].as_array().unwrap().len() >= 3, "{before:?}");
    let agent = Agent::start_with(&env, &settings("1h"), &[]);
    agent.until("the old one to go", |_| {
        (!unfinished.iter().any(|path| path.exists())).then_some(())
    });
    agent.until("a new one", |_| files(&lake).iter().any(|path| is_unfinished(path)).then_some(()));
    let other = train(&env);
    agent.process(other.pid(), |process| process["live_allocations"].as_u64() > Some(0));
    let sequence = |agent: &Agent| agent.api("status")["snapshots_total"].as_u64();
    let seen = sequence(&agent).unwrap();
    agent.until("more rows", |agent| (sequence(agent) > Some(seen + 3)).then_some(()));
    assert_eq!(finished(), before, "no file is finished early");
    agent.end(15);
    assert!(finished().len() > before.len(), "shutdown finishes open files");
    assert!(!files(&lake).iter().any(|path| is_unfinished(path)));
    script("exporters/read_lake.py", &[lake.to_str().unwrap()]);
    drop((workload, other));
}

#[test]
fn full_disk_is_reported_once_by_exporters() {
    let env = env();
    let disk = Disk::new(env.dir.path().join("disk"));
    let filler = disk.0.join("filler");
    fs::write(&filler, vec![1; 256 << 10]).unwrap();
    let otlp = Receiver::start(env.dir.path().join("otlp"), &["404,404,200"]);
    let settings = format!(
        "[exporters.parquet]\ndir = \"{0}/lake\"\ninterval = \"1s\"\nrotate_interval = \"1s\"\n\
         [exporters.otlp]\nendpoint = \"http://127.0.0.1:{1}\"\ninterval = \"1s\"\n",
        disk.0.display(),
        otlp.port
    );
    let agent = Agent::start_with(&env, &settings, &[]);
    let workload = train(&env);
    agent.until("some exports", |_| otlp.body(5));
    assert!(!files(&disk.0).iter().any(|path| path.extension().is_some_and(|e| e == "parquet")));
    fs::remove_file(&filler).unwrap();
    let is_finished = |path: &PathBuf| path.extension().is_some_and(|e| e == "parquet");
    agent.until("files", |_| {
        (files(&disk.0).iter().filter(|path| is_finished(path)).count() > 4).then_some(())
    });
    let messages = agent.end(15);
    for (message, times) in [
        ("cannot write tables to", 1),
        ("No space left on device", 1),
        ("can send metrics to", 1),
        ("can write tables to", 1),
        (" again, after ", 2),
        ("the server returned 404", 1),
    ] {
        assert_eq!(messages.matches(message).count(), times, "{message}: {messages}");
    }
    drop(workload);
}

fn check(env: &TestEnv, settings: &str) -> Output {
    agent::check(Path::new(&agent::settings(env, settings))).output().unwrap()
}

#[test]
fn documented_exporter_config_is_valid() {
    let env = TestEnv::new();
    let output = check(&env, &blocks("docs/operations/exporters.md", "toml")[0]);
    assert!(output.status.success(), "{}", stderr(&output));
    let wrong = "[exporters.otlp]\nendpoint = \"collector\"\ntoken_file = \"/nowhere/token\"\n\
                 [exporters.parquet]\ndir = \"/dev/null/x\"\n";
    let output = check(&env, wrong);
    assert_eq!(output.status.code(), Some(2));
    let messages = stderr(&output);
    for word in ["`endpoint`", "/nowhere/token", "/dev/null is not a directory"] {
        assert!(messages.contains(word), "{word}: {messages}");
    }
    let known = "[exporters.otlp]\nendpoint = \"http://127.0.0.1\"\ngzip = false\n";
    let unknown = "[exporters.parquet]\ndir = \"/tmp\"\nspeed = 3\n";
    for settings in [format!("{known}speed = 3\n"), format!("{known}{unknown}")] {
        let output = check(&env, &settings);
        assert_eq!(output.status.code(), Some(2));
        let line = format!("line {}", settings.lines().count());
        let messages = stderr(&output);
        let named = messages.contains("unknown field `speed`") && messages.contains(&line);
        assert!(named, "{messages}");
    }
}

#[test]
fn tls_exporters_send_only_to_trusted_servers() {
    let env = TestEnv::new();
    let base = env.dir.path();
    let (certificate, key) = certificate(base);
    let trusted = Receiver::start(base.join("trusted"), &["", &certificate, &key]);
    let untrusted = Receiver::start(base.join("untrusted"), &["", &certificate, &key]);
    secret(&base.join("token"), "s3cret");
    let settings = |port: u16, more: &str| {
        format!(
            "[exporters.otlp]\nendpoint = \"https://127.0.0.1:{port}\"\ninterval = \"1s\"\n\
             gzip = false\nmax_retry_time = \"1s\"\ntoken_file = \"{}/token\"\n{more}",
            base.display()
        )
    };
    let ca_file = format!("ca_file = \"{certificate}\"\n");
    let agent = Agent::start_with(&env, &settings(trusted.port, &ca_file), &[]);
    let body = agent.until("metrics", |_| trusted.body(2));
    script("exporters/read_otlp.py", &[&body, "plain"]);
    let messages = agent.end(15);
    assert_eq!(trusted.head(2)["headers"]["authorization"], "Bearer s3cret");
    assert!(!messages.contains("cannot send metrics"), "{messages}");
    let agent = Agent::start_with(&env, &settings(untrusted.port, ""), &[]);
    agent.until("the failure", |agent| {
        agent.messages().contains("cannot send metrics").then_some(())
    });
    agent.end(15);
    assert_eq!(untrusted.count(), 0);
}
