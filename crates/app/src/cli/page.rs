//! Checks that the tables of `docs/reference/cli.md` match the command line. `VRAMSCOPE_UPDATE=1`
//! rewrites them.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use super::Cli;

const VERBS: &str = "| verb | Description |\n|---|---|\n";
const OPTIONS: &str = "| option | Description |\n|---|---|\n";
const END: &str = "<!-- end -->";

/// An argument as users type it: `-o, --output FILE`, `--allocators[=MODE]`, `FILE...`, `-- CMD`.
fn name(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.first().map(ToString::to_string).unwrap_or_default();
    if arg.is_positional() {
        let is_repeated = arg.get_num_args().is_some_and(|range| range.max_values() > 1);
        return match (arg.is_last_set(), is_repeated) {
            (true, _) => format!("-- {value}"),
            (false, true) => format!("{value}..."),
            (false, false) => value,
        };
    }
    let short = arg.get_short().map_or_else(String::new, |short| format!("-{short}, "));
    let long = arg.get_long().unwrap();
    match (arg.get_action().takes_values(), arg.is_require_equals_set()) {
        (false, _) => format!("{short}--{long}"),
        (true, true) => format!("{short}--{long}[={value}]"),
        (true, false) => format!("{short}--{long} {value}"),
    }
}

/// The help of an argument, with its default and its values.
fn description(arg: &Arg) -> String {
    let mut text = arg.get_help().unwrap().to_string();
    if !arg.get_action().takes_values() {
        return text;
    }
    for default in arg.get_default_values() {
        write!(text, " [default: {}]", default.to_string_lossy()).unwrap();
    }
    if let Some(variable) = arg.get_env() {
        write!(text, " [env: {}]", variable.to_string_lossy()).unwrap();
    }
    let values = arg.get_possible_values();
    if !values.is_empty() {
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        write!(text, " [possible values: {}]", names.join(", ")).unwrap();
    }
    text
}

/// Returns the table rows of a verb's options.
fn options(verb: &Command) -> String {
    // Options that every verb has are described once.
    let is_visible =
        |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && arg.get_id() != "help";
    verb.get_arguments().filter(is_visible).fold(String::new(), |mut rows, arg| {
        let (name, text) = (name(arg).replace('|', "\\|"), description(arg).replace('|', "\\|"));
        writeln!(rows, "| `{name}` | {text} |").unwrap();
        rows
    })
}

/// Returns the page with regenerated tables.
fn regenerate(page: &str) -> String {
    let mut command = Cli::command();
    command.build();
    let verbs: Vec<&Command> = command
        .get_subcommands()
        .filter(|verb| verb.get_name() != "help" && !verb.is_hide_set())
        .collect();
    let rows = verbs.iter().fold(String::new(), |mut rows, verb| {
        let (name, about) = (verb.get_name(), verb.get_about().unwrap());
        writeln!(rows, "| [`{name}`](#{name}) | {about} |").unwrap();
        rows
    });
    let (head, rest) = page.split_once(VERBS).expect("a table of verbs");
    let tail = rest.split_once("\n\n").expect("text after the table of verbs").1;
    let mut page = format!("{head}{VERBS}{rows}\n{tail}");
    for verb in verbs {
        let name = verb.get_name();
        assert!(page.contains(&format!("\n## {name}\n")), "cli.md has no section on {name}");
        let rows = options(verb);
        if rows.is_empty() {
            continue;
        }
        let start = format!("<!-- options {name} -->\n");
        let Some((head, rest)) = page.split_once(&start) else {
            panic!("cli.md has no table `{}`", start.trim_end());
        };
        let (_, tail) = rest.split_once(END).expect("an end of the table");
        page = format!("{head}{start}{OPTIONS}{rows}{END}{tail}");
    }
    page
}

#[test]
fn cli_reference_tables_are_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let expected = regenerate(&found);
    if found == expected {
        return;
    }
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        std::fs::write(&path, expected).unwrap();
        return;
    }
    let stale = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    panic!("docs/reference/cli.md is stale: run this test with VRAMSCOPE_UPDATE=1: {stale:#?}");
}
