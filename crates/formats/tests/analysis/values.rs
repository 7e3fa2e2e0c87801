//! Values of the rich file, computed by hand: 8 MiB and 5 MiB of process 7 are not freed, with a
//! static variable of 3000 bytes; process 8 exits with 4 MiB; the array of device 1 was released
//! with its context. The peak of device 0 is at 3 s: 3000 B + 8 + 32 + 4 MiB.

use engine::analysis::leaks::LeakReport;
use formats::report::analysis::AnalysisResult;
use serde_json::json;

use super::fixture::{FileFixture, MIB, SECOND};
use super::object;

#[test]
fn held_bytes_are_device_memory_with_a_static_part() {
    let fixture = FileFixture::rich();
    let leaks = LeakReport::of(&fixture.groups());
    let found = object(&fixture, AnalysisResult::Leaks(&leaks, &fixture.state()));
    assert_eq!(found["held_bytes"], 17 * MIB + 3000);
    assert_eq!(found["held_allocations"], 4);
    assert_eq!(
        (&found["not_freed_bytes"], &found["not_freed_allocations"]),
        (&json!(4 * MIB), &json!(1))
    );
    assert_eq!((&found["static_bytes"], &found["static_allocations"]), (&json!(3000), &json!(1)));
    let kinds = json!({ "device": 13 * MIB, "async": 4 * MIB, "static": 3000 });
    assert_eq!(found["by_kind"], kinds);
    assert_eq!(found["managed"]["bytes"], 2 * MIB + 500);
    assert_eq!(found["host_by_kind"], json!({ "pinned": 4096 }));
    assert_eq!(found["other_by_kind"], json!({ "imported": MIB }));
    let sites = found["sites"].as_array().unwrap();
    let bytes: Vec<_> = sites.iter().map(|site| site["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [8 * MIB, 5 * MIB, 4 * MIB, 3000]);
    assert_eq!(sites[0]["frames"][1]["function"], "make_buffer");
    assert_eq!((&sites[2]["pid"], &sites[2]["live_at_exit"]), (&json!(8), &json!(1)));
    assert_eq!((&found["source"], &found["exact"]), (&json!("nsys"), &json!(false)));
}

#[test]
fn peak_matches_the_value_computed_by_hand() {
    let fixture = FileFixture::rich();
    let found = object(&fixture, AnalysisResult::Peak(&fixture.peaks()));
    let peak = &found["peaks"][0];
    assert_eq!((&peak["device"], &peak["pid"]), (&json!(0), &json!(null)));
    assert_eq!(peak["bytes"], 44 * MIB + 3000);
    assert_eq!(peak["time"], "2023-11-14T22:13:23.123+00:00");
    assert_eq!(peak["time_ns"], 3 * SECOND);
    let live: Vec<_> =
        peak["live"].as_array().unwrap().iter().map(|at| at["bytes"].as_u64().unwrap()).collect();
    assert_eq!(live, [32 * MIB, 8 * MIB, 4 * MIB, 3000]);
    assert_eq!(peak["live"][0]["allocation_list"][0]["address"], "0x200");
    let own = &found["peaks"][1];
    assert_eq!((&own["pid"], &own["bytes"]), (&json!(7), &json!(40 * MIB + 3000)));
}

#[test]
fn usage_points_are_nanoseconds_and_bytes() {
    let fixture = FileFixture::rich();
    let found = object(&fixture, AnalysisResult::Usage(&fixture.usage(), &[]));
    let series = found["series"].as_array().unwrap();
    let device = series.iter().find(|one| one["kind"] == "device" && one["pid"] == 7).unwrap();
    let expected = json!([
        [2 * SECOND, 8 * MIB],
        [3 * SECOND, 40 * MIB],
        [5 * SECOND, 8 * MIB],
        [6 * SECOND, 13 * MIB],
    ]);
    assert_eq!(device["points"], expected);
    assert_eq!(found["totals"][0]["peak_bytes"], 44 * MIB + 3000);
}

#[test]
fn file_without_wall_clock_uses_seconds() {
    let fixture = FileFixture::later();
    let found = object(&fixture, AnalysisResult::Peak(&fixture.peaks()));
    // The third change, 2 ns after the first one.
    assert_eq!(
        (&found["peaks"][0]["time"], &found["peaks"][0]["time_ns"]),
        (&json!(2e-9), &json!(2))
    );
}
