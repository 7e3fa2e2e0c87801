//! `export` by call stack: its totals match `report`, and other readers accept the output: Google's
//! protocol buffers read profiles, an XML parser reads flame graphs.

use std::path::Path;

use engine::model::event::{
    Allocate, Event, EventKind, Free, FreeFunction, ProcessInfo, SiteFrames,
};
use engine::model::ids::{AllocationKey, DeviceId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, Language};
use engine::model::units::Timestamp;
use formats::WallClock;
use formats::recording::{RecordingHeader, RecordingWriter};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::files::{report, root, run, script, stderr, stdout};

/// Exports a file to another format, and returns the path.
fn export(dir: &TempDir, file: &str, form: &str, more: &[&str]) -> String {
    let path = dir.path().join(format!("out.{form}")).to_str().unwrap().to_owned();
    let mut arguments = vec!["export", file, "--format", form, "-o", &path, "--force"];
    arguments.extend(more);
    let output = run(&arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    path
}

/// Returns the lines of a file in folded format.
fn folded(dir: &TempDir, file: &str, more: &[&str]) -> Vec<(String, u64)> {
    let lines = std::fs::read_to_string(export(dir, file, "folded", more)).unwrap();
    let split = |line: &str| {
        let (stack, value) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), value.parse().unwrap())
    };
    lines.lines().map(split).collect()
}

fn sum(lines: &[(String, u64)]) -> u64 {
    lines.iter().map(|(_, value)| value).sum()
}

/// Runs one of the scripts in `profile/`, and returns its JSON output.
fn python(name: &str, file: &str) -> Value {
    script(&format!("profile/{name}"), &[file])
}

/// Returns files of every format that has stacks.
fn files() -> Vec<String> {
    let formats = [
        "import/nsys/h200-2024.2.3.sqlite",
        "torch/real/torch-2.11_native.pickle",
        "torch/generated/two-devices.pickle",
        "import/sanitizer/2025.3.1.txt",
    ];
    let formats = formats.map(|name| root().join("crates/formats/tests").join(name));
    formats.into_iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

fn frame(function: &str, file: Option<&str>, module: Option<&str>) -> Frame {
    let language = if file.is_some() { Language::Python } else { Language::Native };
    let (file, module) = (file.map(Into::into), module.map(Into::into));
    Frame { function: function.into(), file, line: 7, module, language, ..Frame::default() }
}

/// Writes a recording of two sites, resolved after their first use: one holds 2 of 3 allocations,
/// the other freed all; and an allocation without a stack.
fn recording(dir: &TempDir) -> String {
    let path = dir.path().join("run.arrows").to_str().unwrap().to_owned();
    let header = RecordingHeader {
        source: None,
        version: "1.0.0".into(),
        hostname: String::new(),
        kernel: String::new(),
        target: String::new(),
        activity: false,
        clock: WallClock::recorded(Timestamp(0), 0, Some("UTC"), 0),
        gpus: Vec::new(),
    };
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = RecordingWriter::new(file, &header, |_| "cuMemAlloc_v2").unwrap();
    let (start, uid, name) = (1, 0, "tr;ain".into());
    let process = EventKind::Process(ProcessInfo { start, uid, name, before_trace: false });
    let allocate = |address: u64, bytes: u64, site: Option<u32>| {
        EventKind::Allocate(Allocate {
            key: AllocationKey::address(address),
            kind: MemoryKind::Device,
            bytes,
            context: None,
            device: Some(DeviceId(1)),
            pool: None,
            stream: None,
            site: site.map(SiteId),
        })
    };
    let free = |address| {
        EventKind::Free(Free {
            key: AllocationKey::address(address),
            by: FreeFunction::Free,
            stream: None,
        })
    };
    let driver = frame("cuMemAlloc_v2", None, Some("/usr/lib/libcuda.so.1"));
    let frames_of = |site: u32, own: Frame| {
        let main = frame("main", Some("train.py"), None);
        let frames = [driver.clone(), own, main].into();
        EventKind::Site(SiteFrames { site: SiteId(site), frames })
    };
    let all = [
        process,
        allocate(0x10, 100, Some(4)),
        allocate(0x20, 30, Some(4)),
        allocate(0x30, 1000, Some(9)),
        allocate(0x40, 5, None),
        allocate(0x50, 7, Some(4)),
        free(0x30),
        free(0x50),
        frames_of(4, frame("<step>;\x1b[31m", Some("train.py"), None)),
        frames_of(9, frame("helper 5", None, None)),
    ];
    for (kind, at) in all.into_iter().zip((10..).step_by(10)) {
        let at = Timestamp(at);
        writer
            .event(&Event { pid: Pid(47), tid: Tid(47), entry_time: at, time: at, kind })
            .unwrap();
    }
    writer.finish(Timestamp(500)).unwrap();
    path
}

const DRIVER: &str = "cuMemAlloc_v2 (libcuda.so.1)";

#[test]
fn folded_lines_are_outermost_first_and_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let file = recording(&dir);
    let step = format!("tr:ain (47);main (train.py:7);<step>:\\u{{1b}}[31m (train.py:7);{DRIVER}");
    let helper = format!("tr:ain (47);main (train.py:7);helper_5;{DRIVER}");
    let unknown = "tr:ain (47);(no call stack)".to_owned();
    let lines = |more: &[&str]| folded(&dir, &file, more);
    let in_use = [(unknown.clone(), 5), (step.clone(), 130)];
    assert_eq!(lines(&[]), in_use);
    let objects = [(unknown.clone(), 1), (step.clone(), 2)];
    assert_eq!(lines(&["--unit", "count"]), objects);
    let allocated = [(unknown.clone(), 5), (step.clone(), 137), (helper.clone(), 1000)];
    assert_eq!(lines(&["--value", "allocated"]), allocated);
    let peak = [(unknown, 5), (step, 137), (helper, 1000)];
    assert_eq!(lines(&["--at", "peak"]), peak);
}

#[test]
fn profile_totals_match_the_reports() {
    let dir = tempfile::tempdir().unwrap();
    for file in files().into_iter().chain([recording(&dir)]) {
        let leaks = report(&file, "leaks", &[]);
        let bytes = folded(&dir, &file, &[]);
        assert_eq!(leaks["held_bytes"], sum(&bytes), "{file}");
        let objects = folded(&dir, &file, &["--unit", "count"]);
        assert_eq!(leaks["held_allocations"], sum(&objects), "{file}");
        let peaks = report(&file, "peak", &[])["peaks"].as_array().unwrap().clone();
        let totals = peaks.iter().filter(|peak| peak["pid"].is_null());
        let peak: u64 = totals.map(|peak| peak["bytes"].as_u64().unwrap()).sum();
        assert_eq!(sum(&folded(&dir, &file, &["--at", "peak"])), peak, "{file}");
        let allocated = folded(&dir, &file, &["--value", "allocated"]);
        let profile = python("read_pprof.py", &export(&dir, &file, "pprof", &[]));
        let total = |value: &str| profile["totals"][value].as_u64().unwrap();
        assert_eq!((total("inuse_space"), total("inuse_objects")), (sum(&bytes), sum(&objects)));
        assert_eq!(total("alloc_space"), sum(&allocated), "{file}");
        let graph = export(&dir, &file, "flamegraph", &["--value", "allocated"]);
        assert_eq!(python("read_svg.py", &graph)["total"], sum(&allocated), "{file}");
    }
}

#[test]
fn pprof_profile_has_lines_libraries_and_labels() {
    let dir = tempfile::tempdir().unwrap();
    let profile = python("read_pprof.py", &export(&dir, &recording(&dir), "pprof", &[]));
    let types = json!([
        ["alloc_objects", "count"],
        ["alloc_space", "bytes"],
        ["inuse_objects", "count"],
        ["inuse_space", "bytes"]
    ]);
    assert_eq!(profile["types"], types);
    assert_eq!(profile["default"], "inuse_space");
    let labels = json!({"pid": 47, "device": "1", "kind": "device", "process": "tr;ain (47)"});
    let driver = json!(["cuMemAlloc_v2", "", 7, "/usr/lib/libcuda.so.1"]);
    let main = json!(["main", "train.py", 7, ""]);
    let sample = |own: Option<Value>, values: [u64; 4]| {
        let unknown = json!(["(no call stack)", "", 0, ""]);
        let stack = own.map_or(json!([unknown]), |own| json!([driver, own, main]));
        json!({"stack": stack, "values": values, "labels": labels})
    };
    let step = json!(["<step>;\\u{1b}[31m", "train.py", 7, ""]);
    let helper = json!(["helper 5", "", 7, ""]);
    let expected = json!([
        sample(Some(step), [3, 137, 2, 130]),
        sample(Some(helper), [1, 1000, 0, 0]),
        sample(None, [1, 5, 1, 5]),
    ]);
    assert_eq!(profile["samples"], expected);
}

#[test]
fn flame_graph_has_every_frame() {
    let dir = tempfile::tempdir().unwrap();
    let path = export(&dir, &recording(&dir), "flamegraph", &[]);
    let svg = std::fs::read_to_string(&path).unwrap();
    assert!(svg.contains("truncate_text_right = true"), "labels keep their beginning");
    let graph = python("read_svg.py", &path);
    assert_eq!(graph["total"], 135);
    let frames: Vec<_> = graph["frames"].as_array().unwrap().iter().collect();
    for name in ["tr:ain (47)", "main (train.py:7)", "<step>:\\u{1b}[31m (train.py:7)", DRIVER] {
        assert!(frames.iter().any(|frame| **frame == name), "{name}: {frames:?}");
    }
    assert!(graph["title"].as_str().unwrap().starts_with("GPU memory in use"));
}

#[test]
fn inapplicable_options_are_usage_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = recording(&dir);
    for (options, word) in [
        (&["--format", "nsys-tsv", "--at", "peak"][..], "report FILE peak --format tsv"),
        (&["--format", "csv", "--at", "peak"], "every allocation with its times"),
        (&["--format", "perfetto", "--at", "peak"], "memory over time, with the peak"),
        (&["--format", "torch", "--at", "peak"], "describes the end of the file"),
        (&["--format", "pprof", "--unit", "count"], "pprof"),
        (&["--format", "folded", "--value", "allocated", "--at", "end"], "--value allocated"),
    ] {
        let out = dir.path().join("nothing").to_str().unwrap().to_owned();
        let output = run(&[&["export", &file, "-o", &out], options].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
        assert!(!Path::new(&out).exists());
    }
}

#[test]
fn recording_can_be_reported_by_site() {
    let dir = tempfile::tempdir().unwrap();
    let file = recording(&dir);
    let output = run(&["replay", &file, "--by", "site"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found = stdout(&output);
    let first = "LIVE: 130 B in 2 allocations";
    assert_eq!(found.lines().nth(1).map(|line| &line[..first.len()]), Some(first), "{found}");
    for line in ["    cuMemAlloc_v2 (libcuda.so.1)", "    main (train.py:7)", "    (no stack)"] {
        assert!(found.lines().any(|found| found == line), "{line}\n{found}");
    }
    assert!(found.contains("1 of 5 allocations have no call stack (20.0 %)"), "{found}");
    let short = ["--by", "site", "--stack-depth", "1"];
    let output = run(&[&["replay", &file], &short[..]].concat());
    // The verdicts below name it.
    let found = stdout(&output);
    assert!(!found.lines().any(|line| line == "    main (train.py:7)"), "{found}");
}
