//! `docs/reference/coverage.md` is generated from the hook table. `VRAMSCOPE_UPDATE=1` writes it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use capture::hooks::HOOKS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads all text files below a directory.
fn text(dir: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all += &text(&path);
        } else if let Ok(text) = fs::read_to_string(&path) {
            all += &text;
        }
    }
    all
}

/// Returns whether a text contains a whole word.
fn mentions(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let after = text[at + word.len()..].chars().next();
        let before = text[..at].chars().next_back();
        !after.is_some_and(part) && !before.is_some_and(part)
    })
}

fn page() -> String {
    let workload = text(&root().join("simulator/workload/src"));
    let golden = text(&root().join("crates/capture/src/decode"));
    let real =
        fs::read_to_string(root().join("docs/internals/verification.md")).unwrap_or_default();
    let mut page = String::from(
        "# Traced driver functions\n\n\
         Every function of `libcuda.so.1` that vramscope probes, what a call means to it, and how that \
         is tested.\n\n\
         *Probes*: a workload calls it on the simulated driver, under real probes, and the ledger is \
         compared with the oracle of the driver. *Record*: a test decodes its record. *GPU*: named in \
         the [verification](../internals/verification.md) on a real GPU.\n\n\
         This page is generated from the hook table: `VRAMSCOPE_UPDATE=1 cargo test -p \
         vramscope-capture --test integration coverage`.\n\n\
         | function | meaning | layer | probes | record | GPU |\n|---|---|---|---|---|---|\n",
    );
    let mark = |yes| if yes { "yes" } else { "" };
    for hook in HOOKS {
        let layer = hook.semantics.layer().map_or(String::new(), |layer| format!("{layer:?}"));
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {} |",
            hook.symbol,
            hook.semantics.describe(),
            layer.to_lowercase(),
            mark(mentions(&workload, hook.symbol)),
            mark(mentions(&golden, hook.symbol)),
            mark(mentions(&real, hook.symbol)),
        )
        .unwrap();
    }
    page
}

#[test]
fn coverage_page_is_up_to_date() {
    let path = root().join("docs/reference/coverage.md");
    let page = page();
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/reference/coverage.md is stale: VRAMSCOPE_UPDATE=1 cargo test -p vramscope-capture --test integration coverage"
    );
}
