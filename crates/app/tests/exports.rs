//! `export` for other viewers: their own readers read the output, and its totals match `report`,
//! for files of every format.

mod fixtures;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::VRAMSCOPE;
use crate::harness::files::{recording, report, root, run, script, stderr, stdout, tool};

/// Exports a file to another format in the directory, and returns the path.
fn export(dir: &TempDir, file: &str, form: &str) -> String {
    export_with(dir, file, form, &[])
}

fn export_with(dir: &TempDir, file: &str, form: &str, options: &[&str]) -> String {
    let number = std::fs::read_dir(dir.path()).unwrap().count();
    let path = dir.path().join(format!("{number}.{form}")).to_str().unwrap().to_owned();
    let arguments = ["export", file, "--format", form, "-o", &path];
    let output = run(&[&arguments, options].concat());
    assert!(output.status.success(), "{file} to {form}: {}", stderr(&output));
    assert!(output.stdout.is_empty());
    path
}

/// Runs one of the scripts in `exports/`, and returns its JSON output.
fn python(name: &str, arguments: &[&str]) -> Value {
    script(&format!("exports/{name}"), arguments)
}

/// Returns recordings from a real GPU.
fn recordings() -> Vec<String> {
    let programs =
        ["driver_api", "plain", "torch_async", "torch_expandable", "torch_graph", "torch_native"];
    programs.map(recording).into()
}

/// Returns files of other tools.
fn captures() -> Vec<String> {
    let names = [
        "import/nsys/h200-2024.2.3.sqlite",
        "torch/real/torch-2.11_native.pickle",
        "torch/real/torch-2.11_oom.pickle",
        "torch/generated/two-devices.pickle",
        "import/sanitizer/2025.3.1.txt",
    ];
    let names = names.map(|name| root().join("crates/formats/tests").join(name));
    names.into_iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

fn files() -> Vec<String> {
    recordings().into_iter().chain(captures()).collect()
}

/// Returns counters of a trace or series of a report, by process, device and kind: last value and
/// maximum.
fn by_process(
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
fn perfetto_counters_match_the_usage_report() {
    let dir = tempfile::tempdir().unwrap();
    for file in files() {
        let found = python("read_perfetto.py", &[&export(&dir, &file, "perfetto")]);
        let expected = report(&file, "usage", &[]);
        let last = |one: &Value| one["last"].as_u64().unwrap();
        let point =
            |one: &Value| one["points"].as_array().unwrap().last().unwrap()[1].as_u64().unwrap();
        for list in ["series", "totals"] {
            let found = by_process(&found[list], last, "peak");
            assert_eq!(found, by_process(&expected[list], point, "peak_bytes"), "{list} of {file}");
            assert!(!found.is_empty(), "{file}");
        }
        let counts = |list: &Value, count: fn(&Value) -> u64| -> u64 {
            list["series"].as_array().unwrap().iter().map(count).sum()
        };
        let points = counts(&expected, |one| one["points"].as_array().unwrap().len() as u64);
        assert_eq!(counts(&found, |one| one["points"].as_u64().unwrap()), points, "{file}");
        // Small files: each allocation is shown; those that did not end are open slices.
        let rows = python("read_tables.py", &["json", &export(&dir, &file, "json")]);
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
fn speedscope_has_held_peak_and_allocated_profiles() {
    let dir = tempfile::tempdir().unwrap();
    for file in files() {
        let of = |options: &[&str]| {
            let found =
                python("read_speedscope.py", &[&export_with(&dir, &file, "speedscope", options)]);
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            for profile in found["profiles"].as_array().unwrap() {
                let name = profile["name"].as_str().unwrap();
                *sums.entry(name.rsplit_once(": ").unwrap().1.to_owned()).or_default() +=
                    profile["sum"].as_u64().unwrap();
            }
            sums
        };
        let (held, allocated) = ("held at the end", "allocated");
        let all = of(&[]);
        let held_bytes = report(&file, "leaks", &[])["held_bytes"].as_u64();
        assert_eq!(all.get(held).copied().or(Some(0)), held_bytes, "{file}");
        assert!(all[allocated] >= held_bytes.unwrap() && all[allocated] > 0, "{file}");
        assert_eq!(of(&["--value", "allocated"]), [(allocated.to_owned(), all[allocated])].into());
        let count = of(&["--value", "allocated", "--unit", "count"]);
        assert!(count[allocated] > 0 && count[allocated] < all[allocated], "{file}: {count:?}");
        let peaks = report(&file, "peak", &[])["peaks"].clone();
        let peaks = peaks.as_array().unwrap().iter().filter(|peak| peak["pid"].is_null());
        let peak: u64 = peaks.map(|peak| peak["bytes"].as_u64().unwrap()).sum();
        assert_eq!(of(&["--at", "peak"])["live at the peak"], peak, "{file}");
    }
    // Outermost frames come first: the file has a stack that begins in the interpreter's file.
    let torch = &captures()[1];
    let found = python("read_speedscope.py", &[&export(&dir, torch, "speedscope")]);
    let stacks = found["profiles"][0]["stacks"].as_array().unwrap();
    assert!(stacks.iter().all(|stack| stack[0] == "gpu_0 torch"), "{stacks:?}");
    assert!(stacks.iter().any(|stack| stack[1] == "<module>"), "{stacks:?}");
}

#[test]
fn torch_export_is_consistent() {
    let dir = tempfile::tempdir().unwrap();
    for file in files() {
        let path = export(&dir, &file, "torch");
        let found = python("read_torch.py", &[&path]);
        let leakage = report(&file, "leaks", &[]);
        assert_eq!(found["allocated"], leakage["held_bytes"], "{file}");
        assert_eq!(found["blocks"], leakage["held_allocations"], "{file}");
        // The export can be read again.
        let again = report(&path, "leaks", &[]);
        assert_eq!(again["held_bytes"], leakage["held_bytes"], "{file}");
        assert_eq!(again["other_by_kind"]["pool"], json_sum(&found["reserved"]), "{file}");
    }
}

/// Kinds without bytes are not listed.
fn json_sum(sum: &Value) -> Value {
    if *sum == 0 { Value::Null } else { sum.clone() }
}

#[test]
fn torch_snapshot_round_trips_with_peaks_and_stacks() {
    let dir = tempfile::tempdir().unwrap();
    for file in captures().iter().filter(|file| file.ends_with(".pickle")) {
        let path = export(&dir, file, "torch");
        for analysis in ["summary", "peak", "fragmentation"] {
            let (mut before, mut after) =
                (report(file, analysis, &[]), report(&path, analysis, &[]));
            for object in [&mut before, &mut after] {
                // Entries that were left out are not counted again or warned about.
                for field in ["file", "events", "warnings", "exact"] {
                    object.as_object_mut().unwrap().remove(field);
                }
            }
            assert_eq!(before, after, "{analysis} of {file}");
        }
    }
    let oom = python("read_torch.py", &[&export(&dir, &captures()[2], "torch")]);
    let refused = oom["refused"].as_array().unwrap();
    assert!(!refused.is_empty() && refused[0][0].as_u64().unwrap() > 1 << 30, "{refused:?}");
}

#[test]
fn torch_export_needs_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let file = fixtures::two_processes(&dir);
    let out = dir.path().join("out.pickle");
    let out = out.to_str().unwrap();
    let output = run(&["export", &file, "--format", "torch", "-o", out]);
    assert_eq!(output.status.code(), Some(2));
    let messages = stderr(&output);
    assert!(messages.contains("choose one of 2 with --pid: 1 (one), 2 (two)"), "{messages}");
    assert!(!Path::new(out).exists());
    let output = run(&["export", &file, "--format", "torch", "-o", out, "--pid", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found = python("read_torch.py", &[out]);
    assert_eq!(
        (&found["allocated"], &found["refused"]),
        (&json!(4096), &json!([[1_u64 << 40, 0]]))
    );
}

/// Returns memory never freed by kind, as in a report.
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
fn tables_of_every_format_match_the_leaks_report() {
    let dir = tempfile::tempdir().unwrap();
    let recordings = recordings();
    for file in files() {
        let leakage = report(&file, "leaks", &[]);
        let mut all = Vec::new();
        for form in ["csv", "json", "parquet"] {
            let path = export(&dir, &file, form);
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
fn documented_query_finds_the_leaks_of_the_report() {
    let page = std::fs::read_to_string(root().join("docs/reference/export-formats.md")).unwrap();
    let example = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let script = format!(
        "{example}\nimport json\nprint(json.dumps([[host, int(sum)] for host, _, _, sum in \
         leaks.fetchall()]))\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let file = recordings().pop().unwrap();
    let file = file.as_str();
    let lake = dir.path().join("lake");
    let output = run(&["export", file, "--format", "parquet", "-o", lake.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let leakage = report(file, "leaks", &[]);
    let value = |name: &str| leakage[name].as_u64().unwrap();
    let expected = value("held_bytes") - value("static_bytes");
    let mut python = tool("python");
    let output = python.args(["-c", &script]).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Vec<(String, u64)> =
        serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|(host, _)| host == "h200"), "{rows:?}");
    assert_eq!(rows.iter().map(|(_, bytes)| bytes).sum::<u64>(), expected);
}

#[test]
fn hostile_names_stay_text_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let file = fixtures::hostile(&dir);
    let texts = |script: &str, arguments: &[&str]| -> BTreeSet<String> {
        let found = python(script, arguments);
        let texts = found["texts"].as_array().unwrap().iter();
        texts.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let forms = [
        ("perfetto", texts("read_perfetto.py", &[&export(&dir, &file, "perfetto")])),
        ("speedscope", texts("read_speedscope.py", &[&export(&dir, &file, "speedscope")])),
        ("torch", texts("read_torch.py", &[&export(&dir, &file, "torch")])),
        ("csv", texts("read_tables.py", &["csv", &export(&dir, &file, "csv")])),
        ("json", texts("read_tables.py", &["json", &export(&dir, &file, "json")])),
        ("parquet", texts("read_tables.py", &["parquet", &export(&dir, &file, "parquet")])),
    ];
    for (form, texts) in &forms {
        let all: String = texts.iter().map(String::as_str).collect::<Vec<_>>().concat();
        assert!(all.contains("a\"b,c;d\\u{a}e\\u{202e}f"), "{form}: {texts:?}");
        // Only the lines of a stack have line breaks.
        let is_unsafe = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!all.contains(is_unsafe), "{form}: {texts:?}");
    }
    let processes = |form: usize| forms[form].1.iter().any(|text| text == "'=1+1");
    assert!(processes(3), "a spreadsheet does not compute names: {:?}", forms[3].1);
    assert!(!processes(4) && forms[4].1.contains("=1+1"), "{:?}", forms[4].1);
}

#[test]
fn existing_exports_are_replaced_only_with_force() {
    let dir = tempfile::tempdir().unwrap();
    let file = &recordings()[1];
    for form in
        ["nsys-tsv", "csv", "json", "folded", "pprof", "perfetto", "speedscope", "torch", "parquet"]
    {
        let path = export(&dir, file, form);
        let content = |path: &str| -> BTreeMap<PathBuf, Vec<u8>> { contents(Path::new(path)) };
        let before = content(&path);
        assert!(!before.is_empty());
        let output = run(&["export", file, "--format", form, "-o", &path]);
        assert_eq!(output.status.code(), Some(2), "{form}");
        let messages = stderr(&output);
        let exists = "already exists; use --force to overwrite";
        assert!(messages.contains(exists), "{form}: {messages}");
        assert_eq!(content(&path), before, "{form}");
        let output = run(&["export", file, "--format", form, "-o", &path, "--force"]);
        assert!(output.status.success(), "{form}: {}", stderr(&output));
        // Compressed files contain no time: the content is equal.
        assert_eq!(content(&path), before, "{form}");
        for path in before.keys() {
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{form}: readable by its owner only");
        }
    }
    for verb in [&["report", file][..], &["diff", file, file]] {
        let out = dir.path().join(verb[0]);
        let arguments = [verb, &["-o", out.to_str().unwrap()]].concat();
        assert!(run(&arguments).status.success());
        let output = run(&arguments);
        assert!(stderr(&output).contains("use --force"), "{}", stderr(&output));
        assert!(run(&[&arguments[..], &["--force"]].concat()).status.success());
    }
}

/// Returns every file below a path.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    if path.is_file() {
        return [(path.to_path_buf(), std::fs::read(path).unwrap())].into();
    }
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| contents(&path)).collect()
}

#[test]
fn failed_export_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    // The start of a snapshot, and of a recording that is truncated within its first message.
    for (name, file) in [("cut.pickle", &captures()[1]), ("cut.sqlite", &captures()[0])] {
        let broken = dir.path().join(name);
        let bytes = std::fs::read(file).unwrap();
        std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
        let broken = broken.to_str().unwrap();
        for form in ["csv", "json", "perfetto", "speedscope", "torch", "parquet", "nsys-tsv"] {
            let out = dir.path().join("out");
            let output = run(&["export", broken, "--format", form, "-o", out.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(2), "{form}: {}", stderr(&output));
            let left = if out.exists() { contents(&out) } else { BTreeMap::new() };
            assert!(left.is_empty(), "{form} left {:?}", left.keys());
            if out.is_dir() {
                std::fs::remove_dir_all(&out).unwrap();
            }
        }
    }
    let names = contents(dir.path());
    assert_eq!(names.len(), 2, "{:?}", names.keys());
}

#[test]
fn interrupted_export_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let file = fixtures::long(&dir, 400_000);
    let outs = dir.path().join("outs");
    std::fs::create_dir(&outs).unwrap();
    let out = outs.join("out.json");
    let mut child = Command::new(VRAMSCOPE)
        .args(["export", &file, "--format", "json", "-o", out.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The file exists under a temporary name as soon as the export starts.
    while contents(&outs).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "finished before the interrupt");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let ended = child.wait().unwrap();
    assert!(!ended.success(), "not interrupted");
    assert!(contents(&outs).is_empty(), "{:?}", contents(&outs).keys());
}

#[test]
fn pipe_gets_the_same_bytes_as_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = &captures()[1];
    for form in ["csv", "json", "folded", "perfetto", "speedscope", "torch"] {
        let path = export(&dir, file, form);
        let output = run(&["export", file, "--format", form, "-o", "-"]);
        assert!(output.status.success(), "{form}: {}", stderr(&output));
        assert!(output.stdout == std::fs::read(path).unwrap(), "{form}");
        assert!(!stderr(&output).contains("reading"), "progress is for terminals only");
    }
    for form in ["nsys-tsv", "parquet"] {
        let output = run(&["export", file, "--format", form, "-o", "-"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("must be a directory"), "{}", stderr(&output));
    }
}

#[test]
fn unwritable_output_fails_before_reading() {
    // Reading this file fails, so a message about the output shows that it is checked first.
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("cut.pickle");
    let bytes = std::fs::read(&captures()[1]).unwrap();
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let broken = broken.to_str().unwrap();
    for form in ["csv", "json", "folded", "pprof", "perfetto", "speedscope", "torch"] {
        let output = run(&["export", broken, "--format", form, "-o", "/no/such/dir/out"]);
        assert_eq!(output.status.code(), Some(2));
        let messages = stderr(&output);
        assert!(messages.contains("choose another file"), "{form}: {messages}");
    }
    for form in ["nsys-tsv", "parquet"] {
        let output = run(&["export", broken, "--format", form, "-o", "/proc/x"]);
        assert!(stderr(&output).contains("cannot create directory"), "{}", stderr(&output));
    }
}
