//! Pages that describe JSON field by field.

use std::collections::BTreeMap;

use serde_json::Value;

use super::files::read;

/// Returns the fields of a page: type, and whether they are always present.
pub fn contract(page: &str) -> BTreeMap<String, (String, bool)> {
    let page = read(page);
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0].trim_matches('`').to_owned(), (cells[1].to_owned(), cells[2] == "always"))
    })
    .collect()
}

/// Returns the name of a value's type in the docs.
pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
