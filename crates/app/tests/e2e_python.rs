//! The Python package: the wheel, measurements, the pytest plugin, and requests to a program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::e2e_verdicts::page_data;
use crate::harness::agent::Agent;
use crate::harness::files::{fixture, root, stderr, stdout};
use crate::harness::{TestEnv, VRAMSCOPE, until};

const MIB: u64 = 1 << 20;

/// The user and group `nobody`.
const UNPRIVILEGED: u32 = 65_534;

/// A virtual environment with the package, and the simulated driver.
struct PythonEnv {
    env: TestEnv,
    dir: TempDir,
}

/// Returns the wheel of this build. It is built once for all tests.
fn wheel() -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wheel");
    fs::create_dir_all(&out).unwrap();
    let lock = fs::File::create(out.join("lock")).unwrap();
    lock.lock().unwrap();
    let library = Path::new(VRAMSCOPE).with_file_name("libvramscope_inject.so");
    let package = root().join("python");
    let sources = [Path::new(VRAMSCOPE), &library, &package.join("vramscope"), &package];
    let newest = sources.iter().flat_map(|path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        entries
            .chain([path.to_path_buf()])
            .map(|path| fs::metadata(path).unwrap().modified().unwrap())
    });
    let newest = newest.max().unwrap();
    let known = fs::read_dir(&out).unwrap().flatten().map(|entry| entry.path());
    let known = known.filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    for path in known {
        if fs::metadata(&path).unwrap().modified().unwrap() >= newest {
            return path;
        }
        fs::remove_file(path).unwrap();
    }
    let built = out.join("built");
    fs::create_dir_all(&built).unwrap();
    for file in [Path::new(VRAMSCOPE), &library] {
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(built.join(file.file_name().unwrap())).arg(file);
        assert!(strip.status().unwrap().success());
    }
    let mut build = Command::new("python3");
    let output = build.arg(package.join("build_wheel.py")).arg(&out).arg(&built).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    out.join(stdout(&output).trim())
}

impl PythonEnv {
    /// Creates the environment and installs the wheel with pip, as a user without privileges.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let wheel = wheel();
        let copy = dir.path().join(wheel.file_name().unwrap());
        fs::copy(&wheel, &copy).unwrap();
        let names =
            ["cuda.py", "measure.py", "notebook.py", "test_memory.py", "keeper.py", "leak.py"];
        for name in names {
            fs::copy(fixture(&format!("python/{name}")), dir.path().join(name)).unwrap();
        }
        chown(dir.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        let new = Self { env: TestEnv::new(), dir };
        let venv = new.dir.path().join("venv");
        let output = new.command("python3").args(["-m", "venv"]).arg(&venv).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let mut pip = new.command(venv.join("bin/pip"));
        pip.args(["install", "--no-index", "--quiet", "--disable-pip-version-check"]);
        let output = pip.arg(&copy).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        new
    }

    /// A command of that user, in the directory.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.env.command(program.as_ref());
        command
            .uid(UNPRIVILEGED)
            .gid(UNPRIVILEGED)
            .current_dir(self.dir.path())
            .env("HOME", self.dir.path());
        command
    }

    fn installed(&self, program: &str) -> Command {
        self.command(self.dir.path().join("venv/bin").join(program))
    }

    /// Python with the installed package, and those of the environment that `tools/python-env`
    /// creates.
    fn python_with_packages(&self) -> Command {
        let packages = fs::read_dir(root().join("target/python/lib")).unwrap().next().unwrap();
        let mut command = self.installed("python");
        command.env("PYTHONPATH", packages.unwrap().path().join("site-packages"));
        command
    }

    fn pytest(&self, arguments: &[&str]) -> Output {
        let mut command = self.python_with_packages();
        command.args(["-m", "pytest", "-p", "no:cacheprovider", "test_memory.py"]).args(arguments);
        command.output().unwrap()
    }
}

fn check_measurements(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
    let out: Value = serde_json::from_str(&stdout(output)).unwrap();
    let outer = &out["outer"];
    assert_eq!((&outer["before"], &outer["after"]), (&0.into(), &(3 * MIB).into()), "{outer}");
    assert_eq!((&outer["peak"], &outer["exact"]), (&(12 * MIB).into(), &true.into()), "{outer}");
    assert_eq!(outer["timeline"], 12 * MIB);
    let inner = &out["inner"];
    assert_eq!((&inner["before"], &inner["increase"]), (&(8 * MIB).into(), &(4 * MIB).into()));
    assert_eq!((&inner["kept_bytes"], &inner["objects"]), (&(3 * MIB).into(), &1.into()));
    let line = inner["kept"][0][0].as_str().unwrap();
    assert!(line.starts_with("measure.py:") || line.starts_with("cuda.py:"), "{inner}");
    assert_eq!(inner["kept"][0][2], 3 * MIB);
    assert_eq!(out["thread"]["kept_bytes"], 3 * MIB);
    let functions = serde_json::json!([["function", 5 * MIB], ["coroutine", 6 * MIB]]);
    assert_eq!(out["functions"], functions);
    assert_eq!(out["failing"], MIB);
    let text = out["text"].as_str().unwrap();
    assert!(text.starts_with("inner: peak 12.0 MiB (+4.0 MiB), kept 3.0 MiB and 1 CUDA object,"));
    assert!(out["html"].as_str().unwrap().contains("<svg"));
}

#[test]
fn wheel_installed_without_root_measures_blocks() {
    let python = PythonEnv::new();
    // The package starts the collector.
    check_measurements(&python.installed("python").arg("measure.py").output().unwrap());
    // The program of the wheel does, and finds its library.
    let mut run = python.installed("vramscope");
    run.args(["run", "--json", "-o", "report.json", "--record", "run.arrows", "--"]);
    run.arg(python.dir.path().join("venv/bin/python")).arg("measure.py");
    check_measurements(&run.output().unwrap());
    let report = fs::read_to_string(python.dir.path().join("report.json")).unwrap();
    let last: Value = serde_json::from_str(report.lines().last().unwrap()).unwrap();
    assert_eq!((&last["source"], &last["exact"]), (&"in_process".into(), &true.into()));
    // Too late: CUDA is initialized.
    let late = "import cuda, vramscope\ncuda.allocate(1)\nwith vramscope.measure(): pass";
    let output = python.installed("python").args(["-c", late]).output().unwrap();
    assert!(stderr(&output).contains("CUDA is already initialized"), "{}", stderr(&output));
}

#[test]
fn pytest_plugin_enforces_limits_and_baseline() {
    let python = PythonEnv::new();
    let output = python.pytest(&["--vramscope", "--vramscope-update-baseline"]);
    let text = stdout(&output);
    assert!(text.contains("4 failed, 4 passed"), "{text}{}", stderr(&output));
    for test in ["test_leaks", "test_leaks_an_array", "test_leaks_a_stream", "test_peak"] {
        assert!(text.contains(&format!("FAILED test_memory.py::{test} ")), "{test}: {text}");
    }
    assert!(
        text.contains("2.0 MiB of GPU memory kept; the limit is 1.0 MiB (gpu_leaks)"),
        "{text}"
    );
    assert!(text.contains("device    test_memory.py:21 test_leaks"), "{text}");
    // In the message of the failed test, and in the table. On CI, pytest repeats the whole message.
    let kept_by = "kept by test_memory.kept[*]; test_memory.kept is a list";
    assert!(text.matches(kept_by).count() >= 2, "{text}");
    assert!(text.contains("  16.0 MiB         0 B  test_memory.py::test_peak"), "{text}");
    let text = stdout(&python.pytest(&["--vramscope", "--vramscope-why", "-k", "keeps_an_array"]));
    assert!(text.contains("1 passed") && text.contains(kept_by), "{text}");
    // Nothing is measured without the option.
    assert!(stdout(&python.pytest(&[])).contains("8 passed"));
    // Workers of pytest-xdist, and a test that keeps more than before.
    let mut pytest = vec!["--vramscope", "--vramscope-fail-on-increase", "-n", "2"];
    pytest.extend(["-k", "clean or without_limits"]);
    let output = python.pytest(&pytest);
    assert!(stdout(&output).contains("2 passed"), "{}", stdout(&output));
    let baseline = python.dir.path().join(".vramscope-baseline.json");
    let lower = fs::read_to_string(&baseline).unwrap().replace(&MIB.to_string(), "0");
    fs::write(&baseline, lower).unwrap();
    let output = python.pytest(&[&pytest[..], &["--vramscope-fail-on-increase=512K"]].concat());
    let text = stdout(&output);
    assert!(text.contains("kept memory increased from 0 B to 1.0 MiB"), "{text}");
    assert!(text.contains("1 failed, 1 passed"), "{text}");
}

#[test]
fn notebook_magic_shows_the_memory_of_a_cell() {
    let python = PythonEnv::new();
    let output = python.python_with_packages().arg("notebook.py").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("allocation: peak 7.0 MiB (+7.0 MiB), kept 7.0 MiB, "), "{text}");
}

#[test]
fn references_of_a_recording_are_those_of_the_trace() {
    let python = PythonEnv::new();
    let mut run = python.installed("vramscope");
    run.args(["run", "--why", "--interval", "500ms", "--json", "-o", "live.json"]);
    run.args(["--record", "run.arrows", "--", "venv/bin/python", "leak.py"]);
    let mut child = run.stdin(Stdio::piped()).spawn().unwrap();
    let reports = || fs::read_to_string(python.dir.path().join("live.json")).unwrap_or_default();
    let keeper = "__main__.history (list, ";
    let is_found = || reports().lines().any(|line| line.contains(keeper)).then_some(());
    until("the references", reports, is_found);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let json = |output: Output| serde_json::from_str::<Value>(&stdout(&output)).unwrap();
    let ask = |arguments: &[&str]| {
        let output = python.installed("vramscope").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        output
    };
    let last: Value = serde_json::from_str(reports().lines().last().unwrap()).unwrap();
    let kept_by = last["suspects"][0]["evidence"]["kept_by"].as_str().unwrap();
    assert!(kept_by.starts_with(keeper), "{last}");
    assert_eq!(last["leaks"][0]["cause"], "python_references");
    assert_eq!(json(ask(&["replay", "run.arrows", "--json"])), last);
    let report = json(ask(&["report", "run.arrows", "leaks", "--json"]));
    assert_eq!(report["suspects"][0]["evidence"]["kept_by"], kept_by, "{report}");
    let text = stdout(&ask(&["report", "run.arrows", "--leak", "1"]));
    assert!(text.contains(&format!("kept by {kept_by}")), "{text}");
    let top = json(ask(&["top", "run.arrows", "--once", "--json"]));
    assert_eq!(top["suspects"][0]["evidence"]["kept_by"], kept_by, "{top}");
    ask(&["page", "run.arrows"]);
    assert!(page_data(&python.dir.path().join("run.html")).contains(kept_by));
}

#[test]
fn agent_shows_the_references_that_a_search_found() {
    let python = PythonEnv::new();
    let agent = Agent::start(&python.env, &[]);
    let mut run = python.installed("vramscope");
    run.args(["run", "--why", "--interval", "500ms", "-o", "report.txt", "--"]);
    let mut child = run.args(["venv/bin/python", "leak.py"]).stdin(Stdio::piped()).spawn().unwrap();
    let kept_by = agent.until("the references", |agent| {
        let found = agent.api("suspects");
        let kept_by = |one: &Value| Some(one["evidence"]["kept_by"].as_str()?.to_owned());
        found["suspects"].as_array()?.iter().find_map(kept_by)
    });
    assert!(kept_by.starts_with("__main__.history (list, "), "{kept_by}");
    let shown = agent.get("/api/v1/view/leaks").text();
    assert!(shown.contains("kept by __main__.history (list, "), "{shown}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn search_holds_the_interpreter_briefly() {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", root().join("python")).arg(fixture("python/keepers.py"));
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let graph = "__main__.losses[*].grad_fn<SumBackward0>.next<MulBackward0>";
    let expected = serde_json::json!([
        "__main__.table[*]",
        "__main__.numbers[*]",
        "__main__.queue[*]",
        "__main__.unique[*]",
        "__main__.losses[*]",
        graph,
        format!("{graph}.next<CustomBackward>"),
        format!("{graph}.next<CustomBackward>"),
        "__main__.callback.<closure kept>",
        "cycle",
        "unknown"
    ]);
    assert_eq!(found["paths"], expected);
    assert_eq!(found["search"]["complete"], true, "{found}");
    // CPU time between two releases: other programs on the machine do not count.
    let longest = found["search"]["longest_hold_seconds"].as_f64().unwrap();
    assert!(longest > 0.0 && longest < 0.05, "{found}");
}

#[test]
fn why_names_the_keeper_and_reclaim_frees_its_memory() {
    let python = PythonEnv::new();
    let mut run = python.installed("vramscope");
    run.args([
        "run",
        "-o",
        "report.txt",
        "--",
        "sh",
        "-c",
        "echo $$; exec venv/bin/python keeper.py",
    ]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let pid = lines.next().unwrap();
    assert_eq!(lines.next().unwrap(), "ready");
    let ask = |verb: &str| {
        let output = python.installed("vramscope").args([verb, "-p", &pid, "--json"]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()
    };
    let why = ask("why");
    let keeper = &why["sites"][0]["kept_by"]["keepers"][0];
    assert_eq!(keeper["path"], "__main__.history[*].loss", "{why}");
    assert_eq!((&keeper["entries"], &keeper["count"]), (&40.into(), &40.into()), "{why}");
    assert_eq!(
        (&keeper["container"], &keeper["container_type"]),
        (&"__main__.history".into(), &"dict".into())
    );
    let reclaimed = ask("reclaim");
    assert_eq!(reclaimed["freed_bytes"], 40 * MIB, "{reclaimed}");
    assert_eq!(reclaimed["callbacks"][0]["name"], "__main__.shrink");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
