//! Plots of a small file whose usage was computed by hand.

use std::io::Read;

use engine::analysis::MemoryScope;
use engine::analysis::bands::{BandSampler, BandScan, BandScanResult, BandSeries, GroupBy};
use engine::model::change::{AllocationChange, ChangeKind, EndReason};
use engine::model::ids::{AllocationKey, DeviceId, Pid, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;
use formats::import::collecting_sink::FileInfo;
use formats::import::{ImportSummary, SourceFormat};
use formats::report::analysis::{AnalyzedFile, OverlaySeries};
use formats::report::chart::{Chart, Panel, Theme, write_png, write_svg};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn change(
    at: u64,
    address: u64,
    kind: MemoryKind,
    mib: u64,
    ends: Option<u64>,
) -> AllocationChange {
    let ended = |seconds: u64| ChangeKind::Ended {
        allocated_at: Timestamp(seconds * SECOND),
        reason: EndReason::Freed,
    };
    AllocationChange {
        at: Timestamp(at * SECOND),
        action: ends.map_or(ChangeKind::Allocated, ended),
        pid: Pid(1),
        tid: Tid(1),
        device: Some(DeviceId(0)),
        kind,
        key: AllocationKey::address(address),
        bytes: mib * MIB,
        pool: None,
        stream: None,
        site: None,
    }
}

/// 64 MiB of one kind from 0 s to 10 s, 32 MiB of another from 4 s to 6 s: a peak of 96 MiB at 4 s.
fn changes() -> Vec<AllocationChange> {
    vec![
        change(0, 1, MemoryKind::Device, 64, None),
        change(4, 2, MemoryKind::Async, 32, None),
        change(6, 2, MemoryKind::Async, 32, Some(4)),
        change(10, 1, MemoryKind::Device, 64, Some(0)),
    ]
}

fn bands(changes: &[AllocationChange]) -> (BandScanResult, BandSeries) {
    let mut outline = BandScan::new(MemoryScope::Device);
    changes.iter().for_each(|change| outline.observe(change));
    let drawn = outline.finish();
    let mut bands = BandSampler::new(&drawn, drawn.sample_points(2000), &[(GroupBy::Kind, 10)]);
    changes.iter().for_each(|change| bands.observe(change));
    let series = bands.finish().0.remove(0);
    (drawn, series)
}

fn chart(title: &str, theme: Theme, panels: usize) -> Chart {
    let changes = changes();
    let span = Some((Timestamp(0), Timestamp(10 * SECOND)));
    let info = FileInfo { span, ..FileInfo::default() };
    let imported = ImportSummary { source: SourceFormat::Nsys, events: 4, producer: None };
    let file =
        AnalyzedFile { path: "run.sqlite", imported: &imported, info: &info, top: None, utc: true };
    let (drawn, series) = bands(&changes);
    let points = vec![(Timestamp(0), 128 * MIB), (Timestamp(10 * SECOND), 128 * MIB)];
    let overlay = OverlaySeries { name: "nvidia-smi <b>".into(), device: None, points };
    let overlays = if panels > 1 { vec![overlay] } else { Vec::new() };
    let panel = Panel::new(title, &file, &drawn, &series, &overlays);
    let size = (800, 400);
    Chart { title: title.into(), panels: vec![panel; panels], size, theme, clock: false }
}

fn svg(chart: &Chart) -> String {
    let mut out = Vec::new();
    write_svg(&mut out, chart).unwrap();
    String::from_utf8(out).unwrap()
}

/// Returns the values of an attribute of each element with that name.
fn values(svg: &str, element: &str, attribute: &str) -> Vec<f64> {
    let own = svg.lines().filter(|line| line.starts_with(&format!("<{element} ")));
    own.filter_map(|line| {
        let (_, rest) = line.split_once(&format!(" {attribute}=\""))?;
        rest.split('"').next()?.parse().ok()
    })
    .collect()
}

/// Returns the corners of the filled shapes, from paths of M, H, V and L.
fn corners(svg: &str) -> Vec<Vec<(f64, f64)>> {
    let areas = svg.lines().filter(|line| line.starts_with("<path class=\"c"));
    let shape = |line: &str| {
        let path = line.split_once(" d=\"").unwrap().1.split('"').next().unwrap();
        let mut at = (0.0, 0.0);
        let mut corners = Vec::new();
        let mut rest = path.trim_end_matches('Z');
        while let Some(letter) = rest.chars().next() {
            let body = &rest[1..];
            let end = body.find(['M', 'H', 'V', 'L']).unwrap_or(body.len());
            let numbers: Vec<f64> = body[..end].split(' ').map(|n| n.parse().unwrap()).collect();
            match letter {
                'H' => at.0 = numbers[0],
                'V' => at.1 = numbers[0],
                _ => at = (numbers[0], numbers[1]),
            }
            corners.push(at);
            rest = &body[end..];
        }
        corners
    };
    areas.map(shape).collect()
}

#[test]
fn bands_are_stacked_up_to_the_peak() {
    let svg = svg(&chart("run", Theme::Auto, 1));
    assert!(svg.contains(">peak 96.00 MiB at 4.000 s</text>"), "{svg}");
    let dot = (values(&svg, "circle", "cx")[0], values(&svg, "circle", "cy")[0]);
    let areas = corners(&svg);
    assert_eq!(areas.len(), 2);
    let top = |area: &[(f64, f64)]| area.iter().map(|corner| corner.1).fold(f64::MAX, f64::min);
    let bottom = |area: &[(f64, f64)]| area.iter().map(|corner| corner.1).fold(0.0, f64::max);
    // The larger band is below: 64 of 96 MiB; the other one is the rest.
    assert!((top(&areas[1]) - dot.1).abs() < 0.02, "{areas:?} {dot:?}");
    let (ground, high) = (bottom(&areas[0]), bottom(&areas[0]) - dot.1);
    assert!((ground - top(&areas[0]) - high * 64.0 / 96.0).abs() < 0.05);
    // The peak begins at 4 of 10 seconds.
    let left = areas[0].iter().map(|corner| corner.0).fold(f64::MAX, f64::min);
    let right = areas[0].iter().map(|corner| corner.0).fold(0.0, f64::max);
    assert!((dot.0 - left - (right - left) * 0.4).abs() < 0.05, "{left} {right} {dot:?}");
    for mark in
        [">0<", ">32 MiB<", ">64 MiB<", ">96 MiB<", ">2 s<", ">10 s<", ">device<", ">async<"]
    {
        assert!(svg.contains(mark), "{mark}: {svg}");
    }
}

#[test]
fn colors_follow_the_reader_unless_a_theme_is_set() {
    let auto = svg(&chart("run", Theme::Auto, 1));
    assert_eq!(auto.matches("prefers-color-scheme: dark").count(), 1);
    let (light, dark) = (svg(&chart("run", Theme::Light, 1)), svg(&chart("run", Theme::Dark, 1)));
    assert!(!light.contains("prefers-color-scheme") && !dark.contains("prefers-color-scheme"));
    assert_ne!(light, dark);
}

#[test]
fn markup_in_names_is_escaped() {
    let svg = svg(&chart("</text><script>alert(1)</script>", Theme::Auto, 2));
    assert!(!svg.contains("<script") && !svg.contains("<b>"), "{svg}");
    assert!(svg.contains("&lt;/text&gt;&lt;script&gt;") && svg.contains("nvidia-smi &lt;b&gt;"));
}

#[test]
fn two_files_share_scale_and_legend() {
    let svg = svg(&chart("run", Theme::Auto, 2));
    let heights = values(&svg, "circle", "cy");
    assert_eq!((heights.len(), heights[0]), (2, heights[1]));
    assert_eq!(svg.matches(">device</text>").count(), 1);
    assert_eq!(svg.matches(">96 MiB</text>").count(), 2);
    // The value of nvidia-smi is above the peak, and within the plot.
    assert_eq!(svg.matches(">128 MiB</text>").count(), 2);
}

/// Decodes the size and pixels of a PNG, following its specification.
fn pixels(file: &[u8]) -> (u32, u32, Vec<[u8; 3]>) {
    assert_eq!(file[..8], *b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut packed, mut size) = (8, Vec::new(), (0, 0));
    while at < file.len() {
        let length = number(at) as usize;
        let (name, body) = (&file[at + 4..at + 8], &file[at + 8..at + 8 + length]);
        assert_eq!(number(at + 8 + length), crc(&file[at + 4..at + 8 + length]));
        match name {
            b"IHDR" => {
                size = (number(at + 8), number(at + 12));
                assert_eq!(body[8..], [8, 2, 0, 0, 0]);
            }
            b"IDAT" => packed.extend_from_slice(body),
            name => assert_eq!(name, b"IEND"),
        }
        at += 12 + length;
    }
    let mut rows = Vec::new();
    flate2::read::ZlibDecoder::new(&*packed).read_to_end(&mut rows).unwrap();
    let wide = size.0 as usize * 3;
    let mut above = vec![0_u8; wide];
    let mut all = Vec::new();
    for row in rows.chunks(wide + 1) {
        assert_eq!(row[0], 2, "filter type Up");
        let plain: Vec<u8> =
            row[1..].iter().zip(&above).map(|(less, above)| less.wrapping_add(*above)).collect();
        all.extend(plain.chunks(3).map(|pixel| [pixel[0], pixel[1], pixel[2]]));
        above = plain;
    }
    (size.0, size.1, all)
}

fn crc(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    let byte = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum));
    !bytes.iter().fold(u32::MAX, byte)
}

#[test]
fn png_shows_bands_and_text() {
    let chart = chart("run", Theme::Light, 1);
    let mut file = Vec::new();
    write_png(&mut file, &chart).unwrap();
    let (width, height, pixels) = pixels(&file);
    assert_eq!((width, height), (1600, 800));
    let svg = svg(&chart);
    let areas = corners(&svg);
    let middle = |area: &[(f64, f64)], x: f64| {
        let top = area.iter().map(|corner| corner.1).fold(f64::MAX, f64::min);
        let at = ((x * 2.0) as usize, ((top + 10.0) * 2.0) as usize);
        pixels[at.1 * width as usize + at.0]
    };
    let dot = values(&svg, "circle", "cx")[0];
    let color = |class: usize| {
        let rule = svg.split_once(&format!(".c{class}{{fill:#")).unwrap().1;
        let part = |at: usize| u8::from_str_radix(&rule[at..at + 2], 16).unwrap();
        [part(0), part(2), part(4)]
    };
    assert_eq!(middle(&areas[0], dot - 40.0), color(6));
    assert_eq!(middle(&areas[1], dot + 20.0), color(7));
    assert_eq!(pixels[0], color(0));
    // The title is visible: dark pixels where only it can be.
    let title = (0..60 * width as usize).filter(|at| pixels[*at] == color(1)).count();
    assert!(title > 50, "{title}");
}

#[test]
fn empty_file_has_a_plot() {
    let info = FileInfo::default();
    let imported = ImportSummary { source: SourceFormat::Nsys, events: 0, producer: None };
    let file = AnalyzedFile { path: "x", imported: &imported, info: &info, top: None, utc: true };
    let (drawn, series) = bands(&[]);
    let panel = Panel::new("x", &file, &drawn, &series, &[]);
    let (title, panels) = ("x".to_owned(), vec![panel]);
    let chart = Chart { title, panels, size: (300, 200), theme: Theme::Auto, clock: true };
    assert!(svg(&chart).ends_with("</svg>\n"));
    let mut out = Vec::new();
    write_png(&mut out, &chart).unwrap();
    assert_eq!(pixels(&out).0, 600);
}
