//! The tables of `docs/reference/recording-format.md` are generated from the schema.
//! `VRAMSCOPE_UPDATE=1` writes them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use formats::recording::schema::{ABOUT, COLUMNS, ROWS};

fn columns() -> String {
    let mut table = String::from("| column | type | description |\n|---|---|---|\n");
    for (name, of, about) in COLUMNS {
        writeln!(table, "| `{name}` | {} | {about} |", of.name()).unwrap();
    }
    table
}

fn rows() -> String {
    let mut table = String::from("| `type` | description | columns |\n|---|---|---|\n");
    for (word, about, columns) in ROWS {
        let columns: Vec<String> = columns
            .split(", ")
            .filter(|column| !column.is_empty())
            .map(|column| format!("`{}`", column.replace(" or ", "` or `")))
            .collect();
        writeln!(table, "| `{word}` | {about} | {} |", columns.join(", ")).unwrap();
    }
    table
}

fn metadata_keys() -> String {
    let mut table = String::from("| `name` | `value` |\n|---|---|\n");
    for (name, about) in ABOUT {
        writeln!(table, "| `{name}` | {about} |").unwrap();
    }
    table
}

#[test]
fn documented_tables_are_up_to_date() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/recording-format.md");
    let found = fs::read_to_string(&path).unwrap();
    let mut page = found.clone();
    for (mark, table) in [("columns", columns()), ("rows", rows()), ("about", metadata_keys())] {
        let start = format!("<!-- {mark} -->\n");
        let (before, rest) = page.split_once(&start).expect("the mark of a table");
        let (_, after) = rest.split_once("<!-- end -->").expect("the end of a table");
        page = format!("{before}{start}{table}<!-- end -->{after}");
    }
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
        return;
    }
    assert!(
        found == page,
        "docs/reference/recording-format.md is stale: \
         VRAMSCOPE_UPDATE=1 cargo test -p vramscope-formats --test integration recording"
    );
}
