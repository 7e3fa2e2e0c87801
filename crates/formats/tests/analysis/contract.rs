//! `docs/reference/json-report.md` describes the JSON output field by field.

use std::collections::{BTreeMap, BTreeSet};

use engine::analysis::leaks::LeakReport;
use engine::model::units::Nanos;
use engine::verdict::CacheTensors;
use formats::report::analysis::AnalysisResult;
use serde_json::Value;

use super::fixture::{FileFixture, fragmentation, overlay};
use super::{comparison_object, object};

type Contract = BTreeMap<String, (String, bool)>;

/// Returns the rows of the field tables, by the heading above them.
fn contracts() -> BTreeMap<String, Contract> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/reference/json-report.md");
    let mut heading = String::new();
    let mut contracts: BTreeMap<String, Contract> = BTreeMap::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        if let Some(name) = line.strip_prefix("### ") {
            heading = name.to_owned();
        } else if line.starts_with("## ") {
            heading.clear();
        } else if line.starts_with("| `") && !heading.is_empty() {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let field = cells[0].trim_matches('`').to_owned();
            let row = (cells[1].to_owned(), cells[2] == "always");
            let part = if field.starts_with("frames[]") { "frames" } else { &heading };
            contracts.entry(part.to_owned()).or_default().insert(field, row);
        }
    }
    contracts
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Maps a path to its description: frames, managed sites, verdicts and the newer side of a diff are
/// described once.
fn described_as(path: &str) -> String {
    if let Some(at) = path.rfind("frames[]") {
        return path[at..].to_owned();
    }
    path.replace("managed.sites[]", "sites[]")
        .replace("host.sites[]", "sites[]")
        .replace("sites[].after.", "sites[].before.")
}

/// Parts that `docs/reference/json-trace.md` describes: the same code writes them.
const OF_TRACE: [&str; 5] =
    ["suspects[]", "other_verdicts[]", "anomalies[]", "leaks[].frame", "not_freed[].frame"];

fn faults(object: &Value, path: &str, contract: &Contract, found: &mut BTreeSet<String>) {
    let Some(fields) = object.as_object().filter(|_| !OF_TRACE.contains(&path)) else { return };
    let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
    for (name, value) in fields {
        let field = format!("{prefix}{name}");
        let is = type_of(value);
        match contract.get(&described_as(&field)) {
            None => drop(found.insert(format!("{field} ({is}) is printed and not described"))),
            Some((types, _)) if types == "map" => assert_eq!(is, "object", "{field}"),
            Some((types, _)) if !types.split(" or ").any(|one| one == is) => {
                found.insert(format!("{field} is a {is}, not a {types}"));
            }
            Some(_) => faults(value, &field, contract, found),
        }
        for item in value.as_array().into_iter().flatten() {
            faults(item, &format!("{field}[]"), contract, found);
        }
    }
    let own = described_as(&prefix);
    for (field, _) in contract.iter().filter(|(_, (_, always))| *always) {
        let name = field.strip_prefix(&own).filter(|name| !name.contains('.'));
        if name.is_some_and(|name| !fields.contains_key(name)) {
            found.insert(format!("{prefix}: {field} is described as always present but missing"));
        }
    }
}

/// Collects every field of an object, with the path that the contract uses.
fn fields(object: &Value, path: &str, all: &mut BTreeSet<String>) {
    for (name, value) in object.as_object().into_iter().flatten() {
        let field = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        all.insert(described_as(&field));
        fields(value, &field, all);
        for item in value.as_array().into_iter().flatten() {
            fields(item, &format!("{field}[]"), all);
        }
    }
}

#[test]
fn report_json_matches_its_documentation() {
    let contracts = contracts();
    let (rich, with_verdicts) = (FileFixture::rich(), FileFixture::with_verdicts());
    let mut state = with_verdicts.state();
    state.snapshot.suspects[0].evidence.freed_at_end = 1;
    state.snapshot.other_verdicts[0].evidence.time_to_verdict = Some(Nanos(1));
    state.snapshot.other_verdicts[0].evidence.tensors = Some(CacheTensors {
        live: 1,
        peak: 2,
        cache: 3,
        growth_per_hour: 4,
        cache_growth_per_hour: 5,
        bounded: true,
        unused: 6,
        failed_captures: 7,
        during_capture: true,
    });
    let objects = [
        object(&rich, AnalysisResult::Leaks(&LeakReport::of(&rich.groups()), &state)),
        object(&rich, AnalysisResult::Peak(&rich.peaks())),
        object(&rich, AnalysisResult::Usage(&rich.usage(), &[overlay()])),
        object(&rich, AnalysisResult::Summary(&rich.summary(), &rich.peaks(), &state)),
        object(&rich, AnalysisResult::Sites(&rich.summary())),
        object(&rich, AnalysisResult::Libraries(&rich.summary())),
        object(&rich, AnalysisResult::Fragmentation(&fragmentation())),
    ];
    let mut found = BTreeSet::new();
    for object in objects {
        let name = object["analysis"].as_str().unwrap();
        let mut contract = contracts[name].clone();
        contract.extend(contracts["every analysis"].clone());
        contract.extend(contracts["frames"].clone());
        if ["summary", "leaks"].contains(&name) {
            contract.extend(contracts["verdict"].clone());
        }
        faults(&object, "", &contract, &mut found);
        let mut printed = BTreeSet::new();
        fields(&object, "", &mut printed);
        // Warnings and reasons are not in every file.
        let has_sites = !["usage", "fragmentation", "libraries"].contains(&name);
        let rare = |field: &str| {
            // The state of these files has neither GPUs nor processes that exited.
            let rare = [
                "warnings[].",
                "frames[].unknown_reason",
                "gpus[].",
                "leaks[].",
                "not_freed[].",
                "libraries[].",
                "notes[].",
                "too_early_seconds",
            ];
            rare.iter().any(|beginning| field.starts_with(beginning))
                || (field.starts_with("frames[]") && !has_sites)
        };
        for field in contract.keys().filter(|field| !printed.contains(*field) && !rare(field)) {
            found.insert(format!("{name}: {field} is described and never printed"));
        }
    }
    assert!(found.is_empty(), "docs/reference/json-report.md: {found:#?}");
}

#[test]
fn diff_json_matches_its_documentation() {
    let contracts = contracts();
    let object = comparison_object();
    let mut contract = contracts["diff"].clone();
    for name in ["analysis", "exact"] {
        contract.insert(name.into(), contracts["every analysis"][name].clone());
    }
    contract.extend(contracts["frames"].clone());
    // Both files are described like those of every analysis.
    for (field, (types, _)) in &contracts["every analysis"] {
        for side in ["before", "after"] {
            contract.insert(format!("{side}.{field}"), (types.clone(), false));
        }
    }
    let mut found = BTreeSet::new();
    faults(&object, "", &contract, &mut found);
    assert!(found.is_empty(), "docs/reference/json-report.md: {found:#?}");
}
