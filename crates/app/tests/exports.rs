//! `export` for other people's viewers: their own readers read what is written, and its sums are those
//! of `report`, for files of every sort.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod harness;
#[path = "exports/made.rs"]
mod made;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::VRAMSCOPE;
use harness::files::{recording, report, root, run, script, stderr, stdout, tool};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Writes a file in another form, beside what is there; gives where.
fn export(folder: &TempDir, file: &str, form: &str) -> String {
    let number = std::fs::read_dir(folder.path()).unwrap().count();
    let path = folder.path().join(format!("{number}.{form}")).to_str().unwrap().to_owned();
    let output = run(&["export", file, "--format", form, "-o", &path]);
    assert!(output.status.success(), "{file} to {form}: {}", stderr(&output));
    assert!(output.stdout.is_empty());
    path
}

/// Runs one of the scripts in `exports/`; the JSON that it prints.
fn python(name: &str, arguments: &[&str]) -> Value {
    script(&format!("exports/{name}"), arguments)
}

/// Recordings from a real GPU.
fn recordings() -> Vec<String> {
    let programs =
        ["driver_api", "plain", "torch_async", "torch_expandable", "torch_graph", "torch_native"];
    programs.map(recording).into()
}

/// Files of other tools.
fn captures() -> Vec<String> {
    let names = [
        "import/nsys/h200-2024.2.3.sqlite",
        "torch/real/torch-2.11_native.pickle",
        "torch/real/torch-2.11_oom.pickle",
        "torch/made/two-devices.pickle",
        "import/sanitizer/2025.3.1.txt",
    ];
    let names = names.map(|name| root().join("crates/formats/tests").join(name));
    names.into_iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

fn files() -> Vec<String> {
    recordings().into_iter().chain(captures()).collect()
}

/// Counters of a trace or series of a report, by process, device and kind: the last value, the most.
fn by_place(
    series: &Value,
    last: impl Fn(&Value) -> u64,
    peak: &str,
) -> BTreeMap<String, [u64; 2]> {
    let series = series.as_array().unwrap().iter();
    series
        .map(|one| {
            let name = format!("{} {} {}", one["pid"], one["device"], one["kind"]);
            (name, [last(one), one[peak].as_u64().unwrap()])
        })
        .collect()
}

#[test]
fn counters_in_perfetto_end_and_peak_as_usage_says() {
    let folder = tempfile::tempdir().unwrap();
    for file in files() {
        let found = python("read_perfetto.py", &[&export(&folder, &file, "perfetto")]);
        let wanted = report(&file, "usage", &[]);
        let told = |one: &Value| one["last"].as_u64().unwrap();
        let point =
            |one: &Value| one["points"].as_array().unwrap().last().unwrap()[1].as_u64().unwrap();
        for list in ["series", "totals"] {
            let found = by_place(&found[list], told, "peak");
            assert_eq!(found, by_place(&wanted[list], point, "peak_bytes"), "{list} of {file}");
            assert!(!found.is_empty(), "{file}");
        }
        let counts = |list: &Value, of: fn(&Value) -> u64| -> u64 {
            list["series"].as_array().unwrap().iter().map(of).sum()
        };
        let points = counts(&wanted, |one| one["points"].as_array().unwrap().len() as u64);
        assert_eq!(counts(&found, |one| one["points"].as_u64().unwrap()), points, "{file}");
        // Small files: each allocation is shown, those that did not end as open ones.
        let rows = python("read_tables.py", &["json", &export(&folder, &file, "json")]);
        let rows = rows["rows"].as_array().unwrap();
        let slices = found["slices"].as_array().unwrap();
        assert_eq!(slices.len(), rows.len(), "{file}");
        let open = slices.iter().filter(|slice| slice["nanos"].is_null()).count();
        assert_eq!(open, rows.iter().filter(|row| row["end_reason"] == "live").count(), "{file}");
        let bytes =
            |list: &[Value]| list.iter().map(|one| one["bytes"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(bytes(slices), bytes(rows), "{file}");
    }
}

#[test]
fn speedscope_has_what_was_never_freed_and_what_was_allocated() {
    let folder = tempfile::tempdir().unwrap();
    for file in files() {
        let found = python("read_speedscope.py", &[&export(&folder, &file, "speedscope")]);
        let sum = |what: &str| -> u64 {
            let profiles = found["profiles"].as_array().unwrap().iter();
            let of = profiles.filter(|profile| profile["name"].as_str().unwrap().ends_with(what));
            of.map(|profile| profile["sum"].as_u64().unwrap()).sum()
        };
        assert_eq!(sum(": never freed"), report(&file, "leaks", &[])["leaked_bytes"], "{file}");
        assert!(sum(": allocated") >= sum(": never freed") && sum(": allocated") > 0, "{file}");
    }
    // Outermost frames come first: the file has a stack that begins in the interpreter's file.
    let torch = &captures()[1];
    let found = python("read_speedscope.py", &[&export(&folder, torch, "speedscope")]);
    let stacks = found["profiles"][0]["stacks"].as_array().unwrap();
    assert!(stacks.iter().all(|stack| stack[0] == "gpu_0 torch"), "{stacks:?}");
    assert!(stacks.iter().any(|stack| stack[1] == "<module>"), "{stacks:?}");
}

#[test]
fn python_reads_snapshots_whose_trace_leads_to_their_state() {
    let folder = tempfile::tempdir().unwrap();
    for file in files() {
        let path = export(&folder, &file, "torch");
        let found = python("read_torch.py", &[&path]);
        let leakage = report(&file, "leaks", &[]);
        assert_eq!(found["allocated"], leakage["leaked_bytes"], "{file}");
        assert_eq!(found["blocks"], leakage["leaked_allocations"], "{file}");
        // And this program reads it again.
        let again = report(&path, "leaks", &[]);
        assert_eq!(again["leaked_bytes"], leakage["leaked_bytes"], "{file}");
        assert_eq!(again["other_by_kind"]["pool"], json_sum(&found["reserved"]), "{file}");
    }
}

/// Kinds without bytes are not listed.
fn json_sum(sum: &Value) -> Value {
    if *sum == 0 { Value::Null } else { sum.clone() }
}

#[test]
fn a_snapshot_of_pytorch_comes_back_with_its_peaks_and_stacks() {
    let folder = tempfile::tempdir().unwrap();
    for file in captures().iter().filter(|file| file.ends_with(".pickle")) {
        let path = export(&folder, file, "torch");
        for analysis in ["summary", "peak", "fragmentation"] {
            let (mut before, mut after) =
                (report(file, analysis, &[]), report(&path, analysis, &[]));
            for object in [&mut before, &mut after] {
                // Entries that were left out are not counted again, nor told of.
                for field in ["file", "events", "warnings", "exact"] {
                    object.as_object_mut().unwrap().remove(field);
                }
            }
            assert_eq!(before, after, "{analysis} of {file}");
        }
    }
    let oom = python("read_torch.py", &[&export(&folder, &captures()[2], "torch")]);
    let refused = oom["refused"].as_array().unwrap();
    assert!(!refused.is_empty() && refused[0][0].as_u64().unwrap() > 1 << 30, "{refused:?}");
}

#[test]
fn a_snapshot_is_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = made::two_processes(&folder);
    let out = folder.path().join("out.pickle");
    let out = out.to_str().unwrap();
    let output = run(&["export", &file, "--format", "torch", "-o", out]);
    assert_eq!(output.status.code(), Some(2));
    let told = stderr(&output);
    assert!(told.contains("choose one of 2 with --pid: 1 (one), 2 (two)"), "{told}");
    assert!(!Path::new(out).exists());
    let output = run(&["export", &file, "--format", "torch", "-o", out, "--pid", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found = python("read_torch.py", &[out]);
    assert_eq!(
        (&found["allocated"], &found["refused"]),
        (&json!(4096), &json!([[1_u64 << 40, 0]]))
    );
}

/// What was never freed by kind, as a report has it.
fn never_freed(leakage: &Value) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for list in ["by_kind", "host_by_kind", "other_by_kind"] {
        for (kind, bytes) in leakage[list].as_object().unwrap() {
            sums.insert(kind.clone(), bytes.as_u64().unwrap());
        }
    }
    for site in leakage["managed"]["sites"].as_array().unwrap() {
        let kind = site["kind"].as_str().unwrap().to_owned();
        *sums.entry(kind).or_default() += site["bytes"].as_u64().unwrap();
    }
    sums
}

#[test]
fn tables_of_every_form_have_the_leaks_of_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let recordings = recordings();
    for file in files() {
        let leakage = report(&file, "leaks", &[]);
        let mut all = Vec::new();
        for form in ["csv", "json", "parquet"] {
            let path = export(&folder, &file, form);
            let mut arguments = vec![form, &path];
            if form == "parquet" && recordings.contains(&file) {
                arguments.push(&file);
            }
            let found = python("read_tables.py", &arguments);
            let sums: BTreeMap<String, u64> = found["never_freed"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(kind, amount)| (kind.clone(), amount[0].as_u64().unwrap()))
                .collect();
            assert_eq!(sums, never_freed(&leakage), "{form} of {file}");
            all.push(found["plain"].clone());
        }
        assert!(!all[0].as_array().unwrap().is_empty(), "{file}");
        assert!(all.iter().all(|rows| *rows == all[0]), "{file}: {all:?}");
    }
}

#[test]
fn the_query_of_the_page_finds_the_leaks_of_the_report() {
    let page = std::fs::read_to_string(root().join("docs/reference/export-formats.md")).unwrap();
    let example = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let script = format!(
        "{example}\nimport json\nprint(json.dumps([[host, int(sum)] for host, _, _, sum in \
         leaks.fetchall()]))\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let file = recordings().pop().unwrap();
    let file = file.as_str();
    let lake = folder.path().join("lake");
    let output = run(&["export", file, "--format", "parquet", "-o", lake.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let leakage = report(file, "leaks", &[]);
    let figure = |name: &str| leakage[name].as_u64().unwrap();
    let wanted = figure("leaked_bytes") - figure("static_bytes");
    let mut python = tool("python");
    let output = python.args(["-c", &script]).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Vec<(String, u64)> =
        serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|(host, _)| host == "h200"), "{rows:?}");
    assert_eq!(rows.iter().map(|(_, bytes)| bytes).sum::<u64>(), wanted);
}

#[test]
fn names_are_text_in_every_form_whatever_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let file = made::hostile(&folder);
    let texts = |script: &str, arguments: &[&str]| -> BTreeSet<String> {
        let found = python(script, arguments);
        let texts = found["texts"].as_array().unwrap().iter();
        texts.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let forms = [
        ("perfetto", texts("read_perfetto.py", &[&export(&folder, &file, "perfetto")])),
        ("speedscope", texts("read_speedscope.py", &[&export(&folder, &file, "speedscope")])),
        ("torch", texts("read_torch.py", &[&export(&folder, &file, "torch")])),
        ("csv", texts("read_tables.py", &["csv", &export(&folder, &file, "csv")])),
        ("json", texts("read_tables.py", &["json", &export(&folder, &file, "json")])),
        ("parquet", texts("read_tables.py", &["parquet", &export(&folder, &file, "parquet")])),
    ];
    for (form, texts) in &forms {
        let all: String = texts.iter().map(String::as_str).collect::<Vec<_>>().concat();
        assert!(all.contains("a\"b,c;d\\u{a}e\\u{202e}f"), "{form}: {texts:?}");
        // Lines of a stack are the only line ends.
        let odd = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!all.contains(odd), "{form}: {texts:?}");
    }
    let processes = |form: usize| forms[form].1.iter().any(|text| text == "'=1+1");
    assert!(processes(3), "a spreadsheet does not compute names: {:?}", forms[3].1);
    assert!(!processes(4) && forms[4].1.contains("=1+1"), "{:?}", forms[4].1);
}

#[test]
fn what_is_there_is_replaced_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let file = &recordings()[1];
    for form in
        ["nsys-tsv", "csv", "json", "folded", "pprof", "perfetto", "speedscope", "torch", "parquet"]
    {
        let path = export(&folder, file, form);
        let content = |path: &str| -> BTreeMap<PathBuf, Vec<u8>> { contents(Path::new(path)) };
        let before = content(&path);
        assert!(!before.is_empty());
        let output = run(&["export", file, "--format", form, "-o", &path]);
        assert_eq!(output.status.code(), Some(2), "{form}");
        let told = stderr(&output);
        assert!(told.contains("already exists; use --force to overwrite"), "{form}: {told}");
        assert_eq!(content(&path), before, "{form}");
        let output = run(&["export", file, "--format", form, "-o", &path, "--force"]);
        assert!(output.status.success(), "{form}: {}", stderr(&output));
        // The compressed ones tell no time: the same again.
        assert_eq!(content(&path), before, "{form}");
        for path in before.keys() {
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{form}: for its owner alone");
        }
    }
    for verb in [&["report", file][..], &["diff", file, file]] {
        let out = folder.path().join(verb[0]);
        let arguments = [verb, &["-o", out.to_str().unwrap()]].concat();
        assert!(run(&arguments).status.success());
        let output = run(&arguments);
        assert!(stderr(&output).contains("use --force"), "{}", stderr(&output));
        assert!(run(&[&arguments[..], &["--force"]].concat()).status.success());
    }
}

/// Every file below a path.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    if path.is_file() {
        return [(path.to_path_buf(), std::fs::read(path).unwrap())].into();
    }
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| contents(&path)).collect()
}

#[test]
fn what_fails_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    // The head of a snapshot, and of a recording that ends within its first message.
    for (name, file) in [("cut.pickle", &captures()[1]), ("cut.sqlite", &captures()[0])] {
        let broken = folder.path().join(name);
        let bytes = std::fs::read(file).unwrap();
        std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
        let broken = broken.to_str().unwrap();
        for form in ["csv", "json", "perfetto", "speedscope", "torch", "parquet", "nsys-tsv"] {
            let out = folder.path().join("out");
            let output = run(&["export", broken, "--format", form, "-o", out.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(2), "{form}: {}", stderr(&output));
            let left = if out.exists() { contents(&out) } else { BTreeMap::new() };
            assert!(left.is_empty(), "{form} left {:?}", left.keys());
            if out.is_dir() {
                std::fs::remove_dir_all(&out).unwrap();
            }
        }
    }
    let names = contents(folder.path());
    assert_eq!(names.len(), 2, "{:?}", names.keys());
}

#[test]
fn an_interrupted_export_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let file = made::long(&folder, 400_000);
    let outs = folder.path().join("outs");
    std::fs::create_dir(&outs).unwrap();
    let out = outs.join("out.json");
    let mut child = Command::new(VRAMSCOPE)
        .args(["export", &file, "--format", "json", "-o", out.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The file is there under another name as soon as the work begins.
    while contents(&outs).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let ended = child.wait().unwrap();
    assert!(!ended.success(), "it was interrupted");
    assert!(contents(&outs).is_empty(), "{:?}", contents(&outs).keys());
}

#[test]
fn a_pipe_gets_the_same_bytes_as_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = &captures()[1];
    for form in ["csv", "json", "folded", "perfetto", "speedscope", "torch"] {
        let path = export(&folder, file, form);
        let output = run(&["export", file, "--format", form, "-o", "-"]);
        assert!(output.status.success(), "{form}: {}", stderr(&output));
        assert!(output.stdout == std::fs::read(path).unwrap(), "{form}");
        assert!(!stderr(&output).contains("reading"), "no progress but on a terminal");
    }
    for form in ["nsys-tsv", "parquet"] {
        let output = run(&["export", file, "--format", form, "-o", "-"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("must be a directory"), "{}", stderr(&output));
    }
}

#[test]
fn a_bad_place_fails_before_the_work() {
    // Reading this file fails, so a message about the place shows which came first.
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("cut.pickle");
    let bytes = std::fs::read(&captures()[1]).unwrap();
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let broken = broken.to_str().unwrap();
    for form in ["csv", "json", "folded", "pprof", "perfetto", "speedscope", "torch"] {
        let output = run(&["export", broken, "--format", form, "-o", "/no/such/folder/out"]);
        assert_eq!(output.status.code(), Some(2));
        let told = stderr(&output);
        assert!(told.contains("choose another file"), "{form}: {told}");
    }
    for form in ["nsys-tsv", "parquet"] {
        let output = run(&["export", broken, "--format", form, "-o", "/proc/x"]);
        assert!(stderr(&output).contains("cannot create directory"), "{}", stderr(&output));
    }
}
