//! `export` by call stack: its sums are those of `report`, and other people's readers understand what
//! is written: Google's protocol buffers read profiles, an XML parser reads flame graphs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod harness;

use std::path::Path;

use engine::event::{Allocate, Event, Free, FreeBy, ProcessFacts, SiteFacts, What};
use engine::ids::{DeviceId, Key, Pid, SiteId, Tid};
use engine::kind::Kind;
use engine::stack::{Frame, Language};
use engine::units::Moment;
use formats::WallClock;
use formats::recording::{Header, Writer};
use harness::files::{report, root, run, script, stderr, stdout};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Writes a file in another form; gives where.
fn export(folder: &TempDir, file: &str, form: &str, more: &[&str]) -> String {
    let path = folder.path().join(format!("out.{form}")).to_str().unwrap().to_owned();
    let mut arguments = vec!["export", file, "--format", form, "-o", &path, "--force"];
    arguments.extend(more);
    let output = run(&arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    path
}

/// The lines of a file in folded form.
fn folded(folder: &TempDir, file: &str, more: &[&str]) -> Vec<(String, u64)> {
    let lines = std::fs::read_to_string(export(folder, file, "folded", more)).unwrap();
    let split = |line: &str| {
        let (stack, figure) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), figure.parse().unwrap())
    };
    lines.lines().map(split).collect()
}

fn sum(lines: &[(String, u64)]) -> u64 {
    lines.iter().map(|(_, figure)| figure).sum()
}

/// Runs one of the scripts in `profile/`; the JSON that it prints.
fn python(name: &str, file: &str) -> Value {
    script(&format!("profile/{name}"), &[file])
}

/// Files of every sort that has stacks.
fn files() -> Vec<String> {
    let formats = [
        "import/nsys/h200-2024.2.3.sqlite",
        "torch/real/torch-2.11_native.pickle",
        "torch/made/two-devices.pickle",
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

/// A recording of two sites, told after they were named: one holds 2 of 3 allocations, the other one
/// freed all; and an allocation of which nothing is known.
fn recording(folder: &TempDir) -> String {
    let path = folder.path().join("run.arrows").to_str().unwrap().to_owned();
    let header = Header {
        version: "1.0.0".into(),
        hostname: String::new(),
        kernel: String::new(),
        target: String::new(),
        work: false,
        clock: WallClock::recorded(Moment(0), 0, Some("UTC"), 0),
        gpus: Vec::new(),
    };
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = Writer::new(file, &header, |_| "cuMemAlloc_v2").unwrap();
    let (start, uid, name) = (1, 0, "tr;ain".into());
    let process = What::Process(ProcessFacts { start, uid, name, before_trace: false });
    let allocate = |address: u64, bytes: u64, site: Option<u32>| {
        What::Allocate(Allocate {
            key: Key::address(address),
            kind: Kind::Device,
            bytes,
            context: None,
            device: Some(DeviceId(1)),
            pool: None,
            stream: None,
            site: site.map(SiteId),
        })
    };
    let free =
        |address| What::Free(Free { key: Key::address(address), by: FreeBy::Free, stream: None });
    let driver = frame("cuMemAlloc_v2", None, Some("/usr/lib/libcuda.so.1"));
    let tell = |site: u32, own: Frame| {
        let main = frame("main", Some("train.py"), None);
        let frames = [driver.clone(), own, main].into();
        What::Site(SiteFacts { site: SiteId(site), frames })
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
        tell(4, frame("<step>;\x1b[31m", Some("train.py"), None)),
        tell(9, frame("helper 5", None, None)),
    ];
    for (what, at) in all.into_iter().zip((10..).step_by(10)) {
        let at = Moment(at);
        writer.event(&Event { pid: Pid(47), tid: Tid(47), entered: at, at, what }).unwrap();
    }
    writer.finish(Moment(500)).unwrap();
    path
}

const DRIVER: &str = "cuMemAlloc_v2 (libcuda.so.1)";

#[test]
fn folded_lines_are_outermost_first_and_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder);
    let step = format!("tr:ain (47);main (train.py:7);<step>:\\u{{1b}}[31m (train.py:7);{DRIVER}");
    let helper = format!("tr:ain (47);main (train.py:7);helper_5;{DRIVER}");
    let unknown = "tr:ain (47);(no call stack)".to_owned();
    let lines = |more: &[&str]| folded(&folder, &file, more);
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
fn sums_are_those_of_reports() {
    let folder = tempfile::tempdir().unwrap();
    for file in files().into_iter().chain([recording(&folder)]) {
        let leakage = report(&file, "leaks", &[]);
        let bytes = folded(&folder, &file, &[]);
        assert_eq!(leakage["leaked_bytes"], sum(&bytes), "{file}");
        let objects = folded(&folder, &file, &["--unit", "count"]);
        assert_eq!(leakage["leaked_allocations"], sum(&objects), "{file}");
        let peaks = report(&file, "peak", &[])["peaks"].as_array().unwrap().clone();
        let wholes = peaks.iter().filter(|peak| peak["pid"].is_null());
        let peak: u64 = wholes.map(|peak| peak["bytes"].as_u64().unwrap()).sum();
        assert_eq!(sum(&folded(&folder, &file, &["--at", "peak"])), peak, "{file}");
        let allocated = folded(&folder, &file, &["--value", "allocated"]);
        let profile = python("read_pprof.py", &export(&folder, &file, "pprof", &[]));
        let total = |value: &str| profile["totals"][value].as_u64().unwrap();
        assert_eq!((total("inuse_space"), total("inuse_objects")), (sum(&bytes), sum(&objects)));
        assert_eq!(total("alloc_space"), sum(&allocated), "{file}");
        let graph = export(&folder, &file, "flamegraph", &["--value", "allocated"]);
        assert_eq!(python("read_svg.py", &graph)["total"], sum(&allocated), "{file}");
    }
}

#[test]
fn a_profile_has_lines_libraries_and_labels() {
    let folder = tempfile::tempdir().unwrap();
    let profile = python("read_pprof.py", &export(&folder, &recording(&folder), "pprof", &[]));
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
    let want = json!([
        sample(Some(step), [3, 137, 2, 130]),
        sample(Some(helper), [1, 1000, 0, 0]),
        sample(None, [1, 5, 1, 5]),
    ]);
    assert_eq!(profile["samples"], want);
}

#[test]
fn a_flame_graph_is_a_picture_with_every_frame() {
    let folder = tempfile::tempdir().unwrap();
    let graph = python("read_svg.py", &export(&folder, &recording(&folder), "flamegraph", &[]));
    assert_eq!(graph["total"], 135);
    let frames: Vec<_> = graph["frames"].as_array().unwrap().iter().collect();
    for name in ["tr:ain (47)", "main (train.py:7)", "<step>:\\u{1b}[31m (train.py:7)", DRIVER] {
        assert!(frames.iter().any(|frame| **frame == name), "{name}: {frames:?}");
    }
    assert!(graph["title"].as_str().unwrap().starts_with("GPU memory in use"));
}

#[test]
fn options_that_mean_nothing_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder);
    for (options, word) in [
        (&["--format", "nsys-tsv", "--at", "peak"][..], "only apply to folded"),
        (&["--format", "pprof", "--unit", "count"], "pprof"),
        (&["--format", "folded", "--value", "allocated", "--at", "end"], "--value allocated"),
    ] {
        let out = folder.path().join("nothing").to_str().unwrap().to_owned();
        let output = run(&[&["export", &file, "-o", &out], options].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
        assert!(!Path::new(&out).exists());
    }
}

#[test]
fn the_last_report_of_a_recording_is_told_by_site() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder);
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
