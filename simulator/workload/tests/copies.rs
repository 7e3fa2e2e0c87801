//! The program `copies` against the oracle.

use std::collections::BTreeMap;

use crate::common::{TestEnv, list, number};

/// Calls and bytes of one iteration, by direction and mode. The sums are written out from the sizes
/// in the program.
const ONCE: [(&str, &str, u64, u64); 13] = [
    // 64 KiB, 1000; unified 7000 and 11000; a rectangle 1000 × 64; a box 400 × 4 × 5.
    ("H2D", "sync", 6, 65_536 + 1000 + 7000 + 11_000 + 64_000 + 8000),
    // 32 KiB, 2000; unified 14000; a batch of 1500 and 2500; batches of boxes 10 × 5 × 4 twice, 7 × 3 × 2.
    ("H2D", "async", 8, 32_768 + 2000 + 14_000 + 4000 + 2 * 200 + 42),
    // 16 KiB, 3000; unified 8000; a rectangle 100 × 10.
    ("D2H", "sync", 4, 16_384 + 3000 + 8000 + 1000),
    // 8 KiB, 4000; unified 13000; a box 200 × 4 × 6; with attributes 3500.
    ("D2H", "async", 5, 8192 + 4000 + 13_000 + 4800 + 3500),
    // 128 KiB, 5000; unified 9000.
    ("D2D", "sync", 3, 131_072 + 5000 + 9000),
    // 96 KiB, 6000; unified 12000; a rectangle 300 × 20; a batch of 1500.
    ("D2D", "async", 5, 98_304 + 6000 + 12_000 + 6000 + 1500),
    ("H2H", "sync", 1, 10_000),
    // 15000; a box 500 × 8 × 3.
    ("peer", "sync", 2, 15_000 + 12_000),
    ("peer", "async", 2, 16_000 + 12_000),
    // A rectangle 256 × 32; rows of 4096, 4000, 3900, 3700 and 1024.
    ("array", "sync", 6, 8192 + 4096 + 4000 + 3900 + 3700 + 1024),
    ("array", "async", 2, 3800 + 3600),
    // 1000 values and 100 × 3, of 1, 2 and 4 bytes.
    ("memset", "sync", 6, 7 * 1300),
    // 1001 values and 101 × 3, of 1, 2 and 4 bytes.
    ("memset", "async", 6, 7 * 1304),
];

#[test]
fn copies_match_expected_calls_and_bytes() {
    let env = TestEnv::new();
    env.run(&["copies", "--iterations", "3"]);
    let oracle = env.oracle();
    let mut sums: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for entry in list(&oracle, "copies") {
        let key = (entry["direction"].as_str().unwrap(), entry["mode"].as_str().unwrap());
        let sum = sums.entry(key).or_default();
        sum.0 += number(entry, "calls");
        sum.1 += number(entry, "bytes");
        assert_eq!((number(entry, "failed"), number(entry, "captured")), (0, 0), "{entry}");
    }
    let expected: BTreeMap<_, _> = ONCE
        .iter()
        .map(|(direction, mode, calls, bytes)| ((*direction, *mode), (calls * 3, bytes * 3)))
        .collect();
    assert_eq!(sums, expected);
    assert!(list(&oracle, "errors").is_empty(), "{}", oracle["errors"]);
}

#[test]
fn copies_run_on_one_device() {
    let env = TestEnv::new();
    let status = env.command(&["copies"]).env("SIM_DEVICES", "1").status().unwrap();
    assert!(status.success());
    let oracle = env.oracle();
    let peers = list(&oracle, "copies").iter().filter(|entry| entry["direction"] == "peer");
    assert_eq!(peers.map(|entry| number(entry, "calls")).sum::<u64>(), 4);
}
