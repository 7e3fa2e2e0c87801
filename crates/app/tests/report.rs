//! `report`, `diff` and `export` on events recorded on a real GPU. `fixtures/report/expected.py`
//! computed the expected values.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::VRAMSCOPE;
use crate::harness::files::{fixture, recording, report, run, stderr, stdout};

fn expected() -> BTreeMap<String, Value> {
    serde_json::from_str(&std::fs::read_to_string(fixture("report/expected.json")).unwrap())
        .unwrap()
}

fn object(program: &str, analysis: &str, more: &[&str]) -> Value {
    report(&recording(program), analysis, more)
}

#[test]
fn leaks_match_the_events() {
    for (program, values) in expected() {
        let found = object(&program, "leaks", &[]);
        assert_eq!(found["held_bytes"], values["leaked_bytes"], "{program}");
        for field in ["by_kind", "host_by_kind"] {
            assert_eq!(found[field], values[field], "{field} of {program}");
        }
        assert_eq!(found["managed"]["bytes"], values["managed_bytes"], "{program}");
        assert_eq!((&found["source"], &found["exact"]), (&"recording".into(), &true.into()));
    }
}

#[test]
fn peaks_and_their_live_sets_match_the_events() {
    for (program, values) in expected() {
        let found = object(&program, "peak", &[]);
        let peak = &found["peaks"][0];
        assert_eq!(peak["bytes"], values["peak_bytes"], "{program}");
        assert_eq!(peak["time_ns"], values["peak_time_ns"], "{program}");
        let groups = peak["live"].as_array().unwrap();
        let each = groups.iter().flat_map(|group| group["allocation_list"].as_array().unwrap());
        let live: BTreeSet<&str> = each.map(|one| one["address"].as_str().unwrap()).collect();
        let values = values["live_at_peak"].as_array().unwrap().iter();
        assert_eq!(live, values.map(|one| one.as_str().unwrap()).collect(), "{program}");
        let summary = object(&program, "summary", &[]);
        assert_eq!(summary["peak_bytes"], peak["bytes"]);
    }
}

#[test]
fn downsampled_usage_keeps_the_peak() {
    for (program, values) in expected() {
        for points in [&[][..], &["--max-points", "8"]] {
            let found = object(&program, "usage", points);
            let total = &found["totals"][0];
            assert_eq!(total["peak_bytes"], values["peak_bytes"]);
            let points = total["points"].as_array().unwrap();
            let highest = points.iter().map(|point| point[1].as_u64().unwrap()).max();
            assert_eq!(highest, values["peak_bytes"].as_u64(), "{program}");
        }
        let few = object(&program, "usage", &["--max-points", "8"]);
        let longest = few["series"].as_array().unwrap().iter();
        assert!(longest.map(|one| one["points"].as_array().unwrap().len()).max().unwrap() <= 8);
    }
}

#[test]
fn counts_match_the_events() {
    for (program, values) in expected() {
        let found = object(&program, "summary", &[]);
        let process = &found["processes"][0];
        let sum = |field: &str| -> u64 {
            let devices = process["devices"].as_array().unwrap();
            devices.iter().map(|device| device[field].as_u64().unwrap()).sum()
        };
        assert_eq!(
            sum("allocations_total"),
            values["allocations_total"].as_u64().unwrap(),
            "{program}"
        );
        assert_eq!(sum("frees_total"), values["frees_total"].as_u64().unwrap(), "{program}");
    }
}

#[test]
fn fail_on_leak_applies_to_every_analysis() {
    let file = recording("torch_native");
    for command in [
        &["report", &file, "leaks"][..],
        &["report", &file, "usage"],
        &["report", &file],
        &["replay", &file],
    ] {
        let output = run(&[command, &["--fail-on-leak"]].concat());
        assert_eq!(output.status.code(), Some(3));
        assert!(stderr(&output).contains("exited with 330.25 MiB in 17 allocations not freed"));
        let output = run(&[command, &["--fail-on-leak=331M"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

#[test]
fn first_line_is_the_result() {
    let lines = [
        ("summary", "330.25 MiB not freed at exit. No other leak in 1 process."),
        ("leaks", "330.25 MiB not freed at exit. No other leak in 1 process."),
        ("peak", "Peak 666.25 MiB on gpu_0 at 00:00:05.803, in 38 allocations"),
    ];
    for (question, line) in lines {
        let output = run(&["report", &recording("torch_native"), question]);
        assert!(stdout(&output).starts_with(line), "{}", stdout(&output));
        assert!(!output.stdout.contains(&0x1b), "colors in a pipe");
    }
}

#[test]
fn text_fits_the_terminal() {
    for file in ["pytorch.arrows", "cupy_jax_triton.arrows", "cpp.arrows"] {
        for arguments in [
            &["report", file][..],
            &["report", file, "--leak", "1"],
            &["report", file, "leaks"],
            &["report", file, "peak"],
            &["report", file, "sites"],
            &["diff", "cpp.arrows", file],
            &["report", file, "fragmentation"],
            &["replay", file],
            &["plot", file],
            &["advise", file],
            &["top", "--once", file],
        ] {
            for width in [80, 120] {
                let mut command = Command::new(VRAMSCOPE);
                command.current_dir(fixture("h200-leaks"));
                let output = command.args(arguments).env("COLUMNS", width.to_string()).output();
                let text = stdout(&output.unwrap());
                let long = text.lines().find(|line| line.chars().count() > width);
                assert_eq!(long, None, "{arguments:?} at {width}");
                assert!(text.lines().count() > 2, "{arguments:?}: {text}");
            }
        }
    }
}

/// Prints a report of the recording of PyTorch programs on a terminal of 80 columns.
fn narrow(arguments: &[&str]) -> String {
    let mut command = Command::new(VRAMSCOPE);
    command.current_dir(fixture("h200-leaks")).args(arguments).env("COLUMNS", "80");
    stdout(&command.output().unwrap())
}

#[test]
fn narrow_tables_have_whole_names_and_numbers() {
    let text = narrow(&["report", "pytorch.arrows"]);
    for words in [
        "  8562  torch_graphs.py        gpu_0         984   10.71 GiB   10.71 GiB",
        "812  8562 torch_graphs.py\n      capture (torch_graphs.py:16)",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = narrow(&["report", "cupy_jax_triton.arrows"]);
    let kinds = "  8772  jax_history.py             2      0  768.00 MiB  768.00 MiB\n      by kind: \
                 physical 768.00 MiB\n";
    assert!(text.contains(kinds), "{text}");
    let text = narrow(&["report", "pytorch.arrows", "leaks"]);
    assert!(text.contains("  plateau  device      22.00 MiB in 2 allocations "), "{text}");
    assert!(text.contains("size, at this site; live"), "{text}");
    assert!(
        narrow(&["report", "pytorch.arrows", "sites"]).contains("capture (torch_graphs.py:16)")
    );
    assert!(narrow(&["plot", "pytorch.arrows"]).contains("8562  torch_graphs.py"));
}

#[test]
fn sites_that_differ_only_in_folded_frames_are_one_row() {
    let text = narrow(&["report", "cupy_jax_triton.arrows", "peak"]);
    let row = "   13.25 GiB  94.2 %   2069  device    8770 ";
    let next = "\n      transform (cupy_fft_plans.py:10)\n";
    assert!(text.contains(row) && text.contains(next), "{text}");
    assert_eq!(text.matches("  8770  ").count(), 1 + 3, "{text}");
}

#[test]
fn lines_that_leak_have_no_other_verdict() {
    let text = narrow(&["report", "pytorch.arrows", "leaks"]);
    let (_, others) = text.split_once("\nVerdicts on other sites\n").unwrap();
    assert!(!others.contains("torch_loss_history.py:11"), "{others}");
    // The same line in a process that does not leak.
    assert!(others.contains("8563\n      capture (torch_graphs.py:16)"), "{others}");
}

#[test]
fn filters_are_part_of_the_suggested_command() {
    let text = narrow(&["report", "cupy_jax_triton.arrows", "-p", "8774", "--user", "root"]);
    let more = "More: vramscope report cupy_jax_triton.arrows -p 8774 --user 'root' --leak 1\n";
    assert!(text.contains(more), "{text}");
    assert!(text.contains("No device memory was allocated in the recorded time"), "{text}");
    let leak = narrow(&["report", "cupy_jax_triton.arrows", "-p", "8774", "--leak", "1"]);
    assert!(leak.starts_with("Leak 1: triton_constexpr.py:25 <module>"), "{leak}");
}

#[test]
fn number_of_processes_before_the_trace_is_the_same_everywhere() {
    let text = narrow(&["report", "pytorch.arrows"]);
    assert!(text.contains("5 processes started before the trace"), "{text}");
    let text = narrow(&["report", "pytorch.arrows", "peak"]);
    let note = "processes started before the trace; earlier allocations are missing\n  (5)\n";
    assert!(text.contains(note), "{text}");
}

#[test]
fn errors_and_anomalies_name_the_program_and_the_gpu() {
    let flat =
        |arguments: &[&str]| narrow(arguments).split_whitespace().collect::<Vec<_>>().join(" ");
    for (verb, words) in [
        (
            "report",
            "oom.py (pid 8510) requested 200.00 GiB on gpu_0 at oom.py:4 request, which is more \
             than the whole GPU (140.40 GiB)",
        ),
        ("replay", ": torch_graphs.py (pid 8562), torch_graphs.py:13 capture: single allocation"),
        ("advise", "(certain) that grows by 68.32 GiB per hour"),
    ] {
        let text = flat(&[verb, "pytorch.arrows"]);
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn page_is_named_after_the_file_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = fixture("h200-leaks/cpp.arrows");
    let page = |options: &[&str]| {
        let mut command = Command::new(VRAMSCOPE);
        command.current_dir(dir.path()).args(["page", &file]).args(options).output().unwrap()
    };
    assert!(page(&[]).status.success());
    let text = std::fs::read_to_string(dir.path().join("cpp.html")).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>"));
    let again = page(&[]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("already exists"), "{}", stderr(&again));
    assert!(page(&["--force"]).status.success());
    let output = run(&["report", &file, "--force"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--force requires --output"), "{}", stderr(&output));
}

#[test]
fn fragmentation_of_a_recording_lists_the_caches_of_pytorch() {
    let file = fixture("h200-leaks/pytorch.arrows");
    let found = report(&file, "fragmentation", &["--pid", "8562"]);
    let pool = &found["pools"][0];
    assert_eq!((&pool["pid"], &pool["pool"]), (&8562.into(), &"PyTorch".into()), "{found}");
    assert!(pool["reserved_bytes"].as_u64() > pool["active_bytes"].as_u64(), "{found}");
}

#[test]
fn filters_limit_a_report_to_a_part_of_the_file() {
    let all = object("torch_native", "leaks", &["--pid", "614", "--device", "0"]);
    assert_eq!(all["held_allocations"], 17);
}

#[test]
fn report_file_is_readable_by_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page.html");
    let out = path.to_str().unwrap();
    let file = recording("plain");
    let output = run(&["report", &file, "usage", "--format", "html", "-o", out]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{page}");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn usage_errors_have_advice() {
    let good = recording("plain");
    for (arguments, words) in [
        (&["report", "/no/such/file"][..], "cannot read /no/such/file"),
        (&["report", "/etc/hostname"], "/etc/hostname"),
        (&["report", &good, "--max-points", "100"], "`usage`"),
        (&["report", &good, "--top", "3", "--format", "html"], "cannot be combined"),
        (&["report", &good, "usage", "--max-points", "3"], "4 or more"),
        (&["report", &good, "--would-fit", "1M"], "`fragmentation`"),
        (&["report", &good, "peak", "--leak", "1"], "--leak requires"),
        (&["report", &good, "--leak", "1"], "there is no leak 1"),
        (&["report", &good, "--user", "eve"], "no process of user eve"),
        (&["report", &good, "--gpu", "7"], "no GPU 7"),
        (&["report", "http://127.0.0.1:1"], "is `vramscope serve` running there?"),
        (&["report", "http://127.0.0.1:1", "peak"], "answers only `leaks`"),
        (&["report", "http://127.0.0.1:1", "--html"], "in a browser"),
        (&["export", &good, "-o", "x.html"], "vramscope plot FILE -o x.html"),
        (&["report", &good, "--name", "x.py"], "no program `x.py`"),
        (&["export", &good, "-o", "x.unknown"], "use --format"),
        (&["report", &good, "-o", "/no/such/dir/x"], "choose another file"),
        (&["report", &good, "--smi-offset", "1s"], "--smi-log"),
        (&["replay", &good, "--stack-depth", "1", "--format", "json"], "--format text"),
        (&["replay", &good, "--by", "site", "--json"], "--format text"),
        (&["replay", &good, "--by", "site", "--kernels"], "--kernels"),
        (&["replay", &good, "--format", "json", "--json"], "--json"),
        (&["replay", "/etc/hostname"], "/etc/hostname"),
        (&["report", &good, "usage", "--smi-log", "/dev/null"], "not a regular file"),
        (&["diff", &good], "<B>"),
        (&["export", &good, "--format", "nsys-tsv", "-o", "/proc/x"], "cannot create directory"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn closed_output_pipe_is_not_an_error() {
    let mut command = Command::new(VRAMSCOPE);
    command.args(["report", &recording("torch_native"), "peak", "--format", "tsv"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn diff_of_a_file_with_itself_is_empty() {
    let file = recording("torch_native");
    let same = run(&["diff", &file, &file, "--format", "json"]);
    let same: Value = serde_json::from_slice(&same.stdout).unwrap();
    assert_eq!(same["sites"][0]["trend"], "unchanged");
    let values = expected();
    let held = |program: &str| values[program]["leaked_bytes"].clone();
    let other = run(&["diff", &recording("plain"), &file, "--format", "json"]);
    let other: Value = serde_json::from_slice(&other.stdout).unwrap();
    assert_eq!(other["held_bytes"], Value::from(vec![held("plain"), held("torch_native")]));
    assert_eq!(other["sites"][0]["trend"], "grew");
}

#[test]
fn nsys_tables_have_every_call_once() {
    let dir = tempfile::tempdir().unwrap();
    for (program, values) in expected() {
        let dir = dir.path().join(&program);
        let to = dir.to_str().unwrap();
        let output = run(&["export", &recording(&program), "--format", "nsys-tsv", "-o", to]);
        assert!(output.status.success(), "{}", stderr(&output));
        let mut operations: BTreeMap<String, u64> = BTreeMap::new();
        for table in ["valid.tsv", "invalid.tsv", "driver.tsv"] {
            let text = std::fs::read_to_string(dir.join(table)).unwrap();
            for line in text.lines().skip(1) {
                let operation = line.split('\t').nth(5).unwrap();
                *operations.entry(operation.to_owned()).or_default() += 1;
            }
        }
        let count = |name: &str| operations.get(name).copied().map(Value::from);
        let allocations = count("CUDA_DEV_MEM_EVENT_OPR_ALLOCATION");
        assert_eq!(allocations.as_ref(), Some(&values["allocations_total"]), "{program}");
        let frees = count("CUDA_DEV_MEM_EVENT_OPR_DEALLOCATION");
        assert_eq!(frees.as_ref(), Some(&values["frees_total"]), "{program}");
    }
}

#[test]
fn unknown_process_or_device_is_an_error() {
    let file = recording("torch_native");
    for (option, word) in [("--pid", "process"), ("--device", "device")] {
        for question in ["summary", "leaks", "peak", "usage", "sites", "fragmentation"] {
            let output = run(&["report", &file, question, option, "9999"]);
            assert_eq!(output.status.code(), Some(2), "{question}");
            let messages = stderr(&output);
            let expected = format!("no {word} 9999 in this file; it contains ");
            assert!(messages.contains(&expected), "{messages}");
        }
    }
}

#[test]
fn input_file_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.arrows");
    std::fs::copy(recording("torch_native"), &path).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let (path, link) = (path.to_str().unwrap(), link.to_str().unwrap());
    let before = std::fs::read(path).unwrap();
    for arguments in [["report", path, "-o", path, "--top=1"], ["diff", path, link, "-o", link]] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("would be overwritten"), "{}", stderr(&output));
        assert!(std::fs::read(path).unwrap() == before);
    }
}

#[test]
fn kernels_report_needs_recorded_launches() {
    let output = run(&["replay", &recording("torch_native"), "--kernels"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
    assert!(stderr(&output).contains("record again with --kernels"), "{}", stderr(&output));
}

#[test]
fn error_reason_is_printed_once() {
    let output = run(&["report", "no/such/file"]);
    assert_eq!(stderr(&output).matches("No such file").count(), 1, "{}", stderr(&output));
}
