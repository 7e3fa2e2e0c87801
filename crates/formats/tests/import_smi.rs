//! Logs of nvidia-smi: real ones and variants, and their alignment with a file.

use engine::model::units::Timestamp;
use formats::import::nvidia_smi::{AlignmentError, GpuSeries, SmiError, SmiLog, align, parse};

const MIB: u64 = 1 << 20;
const MILLI: i64 = 1_000_000;

fn real() -> SmiLog {
    parse(include_str!("import/smi/loop-ms10.csv")).unwrap()
}

fn series(points: &[(i64, u64)]) -> GpuSeries {
    GpuSeries { gpu: "0".into(), points: points.to_vec() }
}

#[test]
fn real_log_without_header_and_units_is_read() {
    let text = include_str!("import/smi/loop-ms10.csv");
    let overlay = real();
    assert_eq!((overlay.gpus.len(), overlay.skipped, overlay.set_back), (1, 0, 0));
    let points = &overlay.gpus[0].points;
    // 2026-11-15 00:44:12.728, from `date -u -d … +%s`.
    assert_eq!(points[0], (1_794_703_452_728 * MILLI, 0));
    assert_eq!(*points.last().unwrap(), (1_794_703_486_526 * MILLI, 0));
    let peak = text.lines().map(|line| line[25..].parse::<u64>().unwrap()).max().unwrap();
    assert_eq!(points.iter().map(|point| point.1).max(), Some(peak * MIB));
    // The kept points give the value of every line.
    for line in text.lines() {
        let fraction: i64 = line[20..23].parse().unwrap();
        let (minutes, seconds): (i64, i64) =
            (line[14..16].parse().unwrap(), line[17..19].parse().unwrap());
        let time = ((1_794_700_800 + minutes * 60 + seconds) * 1000 + fraction) * MILLI;
        let before = points.partition_point(|point| point.0 <= time);
        assert_eq!(points[before - 1].1, line[25..].parse::<u64>().unwrap() * MIB, "{line}");
    }
}

#[test]
fn several_formats_in_one_file_are_distinguished() {
    let overlay = parse(include_str!("import/smi/compute-apps.csv")).unwrap();
    // The line without a time is skipped.
    assert_eq!(overlay.skipped, 1);
    let gpus: Vec<_> = overlay.gpus.iter().map(|gpu| (&*gpu.gpu, gpu.points[0].1)).collect();
    assert_eq!(gpus, [("0", 1643 * MIB), ("GPU-67bf22d2-b5d2-6521-4905-299b65b79ef1", 1634 * MIB)]);
}

#[test]
fn processes_of_one_gpu_are_summed() {
    let overlay = parse(
        "timestamp, pid, gpu_uuid, used_gpu_memory [MiB]\n\
         2026/01/02 03:04:05.678, 1, GPU-a, 10 MiB\n\
         2026/01/02 03:04:05.678, 2, GPU-a, 20 MiB\n\
         2026/01/02 03:04:05.678, 2, GPU-b, [N/A]\n\
         2026/01/02 03:04:06.678, 1, GPU-a, 10 MiB\n",
    )
    .unwrap();
    assert_eq!(overlay.without_value, 1);
    let points: Vec<_> = overlay.gpus[0].points.iter().map(|point| point.1 / MIB).collect();
    assert_eq!((overlay.gpus.len(), points), (1, vec![30, 10]));
}

#[test]
fn gpus_without_index_are_distinguished_by_order() {
    let tick = |ms: u32, a: u32, b: u32| {
        format!(
            "2026/01/02 03:04:05.{ms:03}, {a} MiB\n2026/01/02 03:04:05.{:03}, {b} MiB\n",
            ms + 1
        )
    };
    let text: String = (0..9).map(|at| tick(at * 100, at, 100)).collect();
    let overlay = parse(&text).unwrap();
    assert_eq!(overlay.gpus.len(), 2);
    assert_eq!(overlay.gpus[0].points.last().unwrap().1, 8 * MIB);
    assert_eq!(overlay.gpus[1].points.last().unwrap().1, 100 * MIB);
    // A line is missing in between: its GPU is unknown.
    let missing: String = text
        .lines()
        .enumerate()
        .filter(|(at, _)| *at != 6)
        .map(|(_, line)| format!("{line}\n"))
        .collect();
    assert_eq!(parse(&missing), Err(SmiError::Mixed));
}

#[test]
fn messages_and_a_truncated_end_are_skipped() {
    let overlay = parse(
        "No devices were found\n\
         2026/01/02 03:04:05.678, 10\n\
         Unable to determine the device handle for GPU\n\
         2026/01/02 03:04:06.678, 20\n\
         2026/01/02 03:04:07.678, 3",
    )
    .unwrap();
    let values: Vec<_> = overlay.gpus[0].points.iter().map(|point| point.1 / MIB).collect();
    // The last number may be truncated.
    assert_eq!((values, overlay.skipped), (vec![10, 20], 3));
    assert_eq!(parse("No devices were found\n"), Err(SmiError::Nothing));
    assert_eq!(parse(""), Err(SmiError::Nothing));
    let several = "2026/01/02 03:04:05.678, 10, 20\n";
    assert_eq!(parse(several), Err(SmiError::NoHeader { line: 1 }));
}

#[test]
fn clock_set_back_does_not_reverse_time() {
    let overlay = parse(
        "2026/10/25 02:59:59.000, 1\n2026/10/25 02:00:00.000, 2\n2026/10/25 02:00:05.000, 3\n",
    )
    .unwrap();
    let points = &overlay.gpus[0].points;
    assert_eq!(overlay.set_back, 1);
    assert!((1..10 * MILLI).contains(&(points[1].0 - points[0].0)));
    assert_eq!(points[2].0 - points[1].0, 5000 * MILLI);
}

/// A possible trace of the program in the real log: the same rises and falls, with another clock,
/// earlier than the next tick, above another base level.
fn usage_like(log: &GpuSeries, offset: i64, floor: u64) -> Vec<(Timestamp, u64)> {
    let early = |at: i64, number: usize| at + offset - (number as i64 * 7919 % 9) * MILLI;
    (0..)
        .zip(&log.points)
        .map(|(number, &(at, bytes))| {
            (Timestamp(early(at, number).unsigned_abs()), bytes.saturating_sub(floor))
        })
        .collect()
}

#[test]
fn log_is_aligned_by_its_changes() {
    let log = &real().gpus[0];
    let start = log.points[0].0;
    let offset = 5_000_000_000 - start;
    let usage = usage_like(log, offset, 500 * MIB);
    let found = align(log, &usage, None).unwrap();
    assert!(found.score > 0.7, "{found:?}");
    assert!((found.offset - offset).abs() <= 20 * MILLI, "{found:?} instead of {offset}");
    // A part of it is enough.
    let part = &usage[usage.len() / 4..usage.len() * 3 / 4];
    let found = align(log, part, None).unwrap();
    assert!((found.offset - offset).abs() <= 20 * MILLI, "{found:?} instead of {offset}");
}

#[test]
fn log_of_another_run_needs_an_explicit_offset() {
    let log = &real().gpus[0];
    let mut usage = Vec::new();
    let (mut at, mut state) = (0_u64, 7_u64);
    for _ in 0..400 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at += 30_000_000 + (state >> 40) % 90_000_000;
        usage.push((Timestamp(at), (state >> 33) % 1000 * MIB));
    }
    let Err(AlignmentError::Poor { score }) = align(log, &usage, None) else {
        panic!("not rejected")
    };
    assert!(score < 0.5);
    let given = align(log, &usage, Some(42)).unwrap();
    assert_eq!(given.offset, 42);
    assert!(given.score < 0.5);
}

#[test]
fn log_without_timestamps_is_rejected() {
    let still = series(&[(0, 5), (1_000_000_000, 5)]);
    let usage = [(Timestamp(0), 1), (Timestamp(500_000_000), 2), (Timestamp(1_000_000_000), 3)];
    assert_eq!(align(&still, &usage, None), Err(AlignmentError::Still));
    assert_eq!(align(&series(&[]), &usage, None), Err(AlignmentError::Still));
    // A periodic log fits at every period.
    let sample = |at: i64| (at * 1_000_000_000, if at % 2 == 0 { 100 * MIB } else { 200 * MIB });
    let periodic = series(&(0..60).map(sample).collect::<Vec<_>>());
    let usage: Vec<_> =
        periodic.points[20..40].iter().map(|&(at, v)| (Timestamp(at as u64), v)).collect();
    assert!(matches!(align(&periodic, &usage, None), Err(AlignmentError::Unclear { .. })));
    // All but the first change, which the file does not contain.
    assert!(align(&periodic, &usage, Some(0)).unwrap().score > 0.95);
}
