//! The documentation works: commands are run, outputs compared by shape, and tables checked with
//! the code. CONTRIBUTING.md describes the marks of code blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

use capture::hooks::HOOKS;
use engine::model::memory_kind::MemoryKind;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::contract::{contract, type_of};
use crate::harness::files::{read, root};
use crate::harness::{ONLY_LIBRARIES_IN, TestEnv, VRAMSCOPE, simulator};

/// Time limit for a documented command, in seconds.
const COMMAND_TIMEOUT_SECONDS: &str = "120";

/// Returns the documents of the top directory and of `docs/`.
fn documents() -> Vec<String> {
    let markdown = |dir: &str| {
        let entries = std::fs::read_dir(root().join(dir)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let dir = dir.to_owned();
        names.filter(|name| name.ends_with(".md")).map(move |name| format!("{dir}/{name}"))
    };
    let parts = ["docs", "docs/guide", "docs/reference", "docs/operations", "docs/internals"];
    let mut all: Vec<String> = markdown(".").chain(parts.into_iter().flat_map(markdown)).collect();
    all.sort();
    all
}

/// A fenced block.
#[derive(Debug)]
struct Block {
    /// Document and line, for messages.
    location: String,
    /// The text after the fence.
    mark: String,
    text: String,
}

fn blocks(document: &str) -> Vec<Block> {
    let text = read(document);
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(mark) = line.strip_prefix("```") else { continue };
        let body = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        blocks.push(Block {
            location: format!("{document}:{}", number + 1),
            mark: mark.to_owned(),
            text: body.collect::<Vec<_>>().join("\n"),
        });
    }
    blocks
}

/// A command of a block and its expected exit code.
#[derive(Debug)]
struct Step {
    line: String,
    code: i32,
}

fn steps(block: &Block) -> Vec<Step> {
    let joined = block.text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines
        .map(|line| match line.split_once("# exit ") {
            None => Step { line: line.to_owned(), code: 0 },
            Some((line, code)) => {
                Step { line: line.trim().to_owned(), code: code.trim().parse().unwrap() }
            }
        })
        .collect()
}

/// The shell for the commands of a document: a directory with `contrib` only, and the simulator on
/// the path.
struct Shell {
    dir: TempDir,
    path: String,
}

impl Shell {
    fn new() -> Self {
        let binary_dir = Path::new(VRAMSCOPE).parent().unwrap();
        let usual = std::env::var("PATH").unwrap();
        let path = format!("{}:{}:{usual}", binary_dir.display(), simulator().display());
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root().join("contrib"), dir.path().join("contrib")).unwrap();
        Self { dir, path }
    }

    fn run(&self, line: &str) -> Output {
        Command::new("timeout")
            .args([COMMAND_TIMEOUT_SECONDS, "bash", "-o", "pipefail", "-c", line])
            .current_dir(self.dir.path())
            .env("PATH", &self.path)
            .env("LD_LIBRARY_PATH", simulator())
            .env(ONLY_LIBRARIES_IN, simulator())
            .env("TZ", "UTC")
            .output()
            .unwrap()
    }
}

/// Runs a documented command, and returns its output.
fn follow(shell: &Shell, location: &str, step: &Step) -> String {
    if let Some(command) = step.line.strip_prefix("./dev ") {
        exists_in_dev(location, command);
        return String::new();
    }
    let output = shell.run(&step.line);
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(step.code), "{location}: {}\n{messages}", step.line);
    String::from_utf8(output.stdout).unwrap()
}

/// Commands of `./dev` build everything; it is enough that they exist.
fn exists_in_dev(location: &str, command: &str) {
    let output = Command::new("./dev").arg("--help").current_dir(root()).output().unwrap();
    assert!(output.status.success());
    let usage = String::from_utf8(output.stdout).unwrap();
    let known = usage.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let word = command.split(' ').next().unwrap();
    assert!(
        known.chain(["--help"]).any(|known| known == word),
        "{location}: unknown command `./dev {word}`"
    );
}

/// Commands that are not run must at least be valid.
fn could_work(location: &str, step: &Step) {
    let line = step.line.trim_start_matches("sudo ");
    let mut words = line.split_whitespace().take_while(|word| *word != "--");
    if words.next() != Some("vramscope") {
        return;
    }
    let verb = words.next().unwrap_or_else(|| panic!("{location}: a command is missing"));
    let output = Command::new(VRAMSCOPE).args([verb, "--help"]).output().unwrap();
    assert!(output.status.success(), "{location}: unknown command {verb}");
    let help = String::from_utf8(output.stdout).unwrap();
    for option in words.filter(|word| word.starts_with('-')) {
        let name = option.split('=').next().unwrap();
        let defined = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        let mut names = defined.flat_map(|line| line.split([' ', ',', '=', '[']));
        assert!(names.any(|known| known == name), "{location}: {verb} has no option {name}");
    }
}

/// Removes parts of a line that differ between runs: numbers, addresses, times and paths. Digits
/// inside a name (`gpu_0`, `cuMemAlloc_v2`) stay.
fn shape(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line.trim_end();
    while let Some(c) = rest.chars().next() {
        let last = out.chars().next_back().unwrap_or(' ');
        let in_word = (last.is_alphanumeric() || last == '_') && !out.ends_with("#T");
        let after = if c.is_ascii_digit() && !in_word {
            out.push('#');
            after_number(rest)
        } else if c == '/' && last == ' ' && !rest.starts_with("/ ") {
            out.push_str("PATH");
            rest.find(' ').map_or("", |end| &rest[end..])
        } else if c == '/' && last == '(' {
            // The leading directories of a frame's path depend on this machine.
            out.push_str("PATH");
            rest.find([':', ')']).map_or("", |end| &rest[end..])
        } else {
            if c != ' ' || last != ' ' || out.is_empty() {
                out.push(c);
            }
            &rest[c.len_utf8()..]
        };
        rest = after;
    }
    out
}

/// Returns the text after a number and its time unit: `0x7f03e2c00000`, `8.00`, `975ms`, `4m05s`.
fn after_number(text: &str) -> &str {
    if let Some(digits) = text.strip_prefix("0x") {
        return digits.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    let mut rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    if let Some(fraction) = rest.strip_prefix('.')
        && fraction.starts_with(|c: char| c.is_ascii_digit())
    {
        rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    for unit in ["ms", "s", "m", "h", "d"] {
        if let Some(more) = rest.strip_prefix(unit)
            && !more.starts_with(|c: char| c.is_ascii_alphabetic())
        {
            return if more.starts_with(|c: char| c.is_ascii_digit()) {
                after_number(more)
            } else {
                more
            };
        }
    }
    rest
}

/// Whether a printed line matches a documented one; `…` stands for any text.
fn line_fits(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (shape(shown), shape(printed));
    let mut pieces = shown.split('…');
    let Some(mut rest) = printed.strip_prefix(pieces.next().unwrap_or("")) else { return false };
    let mut pieces = pieces.peekable();
    if pieces.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return rest.ends_with(piece);
        }
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    true
}

/// Whether printed lines match the documented ones; a line `…` stands for any lines.
fn fits(shown: &[&str], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, more)) if line.trim() == "…" => {
            (0..=printed.len()).any(|from| fits(more, &printed[from..]))
        }
        Some((line, more)) => printed
            .split_first()
            .is_some_and(|(first, rest)| line_fits(line, first) && fits(more, rest)),
    }
}

/// Returns the commands that `--help` lists.
fn verbs() -> Vec<String> {
    let output = Command::new(VRAMSCOPE).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let (_, list) = help.split_once("Commands:\n").expect("no commands in the help");
    let lines = list.lines().take_while(|line| !line.trim().is_empty());
    // Continuation lines are indented further.
    let named = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    named.filter(|verb| !verb.is_empty() && *verb != "help").map(str::to_owned).collect()
}

#[test]
fn documented_commands_work() {
    let (mut run, mut skipped) = (Vec::new(), 0);
    for document in documents() {
        let shell = Shell::new();
        let mut printed = None;
        for block in blocks(&document) {
            let location = &block.location;
            match block.mark.as_str() {
                "sh" => {
                    for step in steps(&block) {
                        printed = Some(follow(&shell, location, &step));
                        run.push(step.line);
                    }
                }
                "text output" => {
                    let printed = printed.take().expect("an output without a command");
                    // A document may show the middle of it.
                    let shown: Vec<&str> =
                        ["…"].into_iter().chain(block.text.lines()).chain(["…"]).collect();
                    let lines: Vec<&str> = printed.lines().collect();
                    assert!(fits(&shown, &lines), "{location}: the output is\n{printed}");
                }
                "sh gpu" | "sh manual" => {
                    let steps = steps(&block);
                    skipped += steps.len();
                    steps.iter().for_each(|step| could_work(location, step));
                }
                // `python.rs` runs Python; the tests of each page check its configuration and
                // queries; `experiments/verify/exporters` runs those for engines outside of these
                // tests.
                "text" | "json" | "python" | "sql" | "toml" | "yaml" => {}
                "sql clickhouse" | "sql spark" => {}
                other => panic!("{location}: `{other}` is not a known mark; see CONTRIBUTING.md"),
            }
        }
    }
    // Every command of vramscope is in a command line that was run, and more than a few were.
    let shown = |verb: &String| run.iter().any(|line| line.contains(&format!("vramscope {verb}")));
    let missing: Vec<String> = verbs().into_iter().filter(|verb| !shown(verb)).collect();
    assert_eq!(missing, [""; 0]);
    assert!(run.len() > skipped / 3, "{} were run, {skipped} were not", run.len());
}

#[test]
fn documented_outputs_are_compared_by_shape() {
    assert!(line_fits("  0x7f:gpu_0: 8.00 MiB  975ms", "  0x1ab:gpu_0: 9.99 MiB  4m05s"));
    assert!(!line_fits("  0x7f:gpu_0: 8.00 MiB  975ms", "  0x7f:gpu_1: 8.00 MiB  975ms"));
    assert!(line_fits("- 2026-11-15T03:25:11+00:00 -", "- 2027-01-02T13:45:59+00:00 -"));
    assert!(line_fits("driver  /a/b: 27 of 27", "driver  /usr/lib/x: 9 of 30"));
    assert!(line_fits("PID: 1 / UID: 0  x", "PID: 9999 / UID: 1000  x"));
    assert!(line_fits("attach mode `…`, …", "attach mode `session`, state in task storage"));
    assert!(!line_fits("attach mode `…`", "attach mode `session`, state in task storage"));
    assert!(fits(&["a", "…", "c"], &["a", "b", "b", "c"]) && fits(&["…"], &[]));
    assert!(!fits(&["a", "…", "c"], &["a", "b"]) && !fits(&["a"], &["a", "b"]));
}

/// Returns the rows of the table whose header begins with these words, cell by cell.
fn table(text: &str, head: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows: Vec<Vec<String>> = lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect();
    assert!(!rows.is_empty(), "no table `{head}`");
    rows
}

/// Returns the text between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn documented_memory_kinds_match_the_code() {
    let traced: BTreeSet<&str> = HOOKS.iter().map(|hook| hook.symbol).collect();
    for row in table(&read("docs/guide/concepts.md"), "| kind |") {
        let name = quoted(&row[0])[0];
        let kind = MemoryKind::ALL.iter().find(|kind| kind.name() == name);
        let kind = kind.unwrap_or_else(|| panic!("unknown kind `{name}`"));
        assert_eq!(row[3] == "yes", kind.takes_device_memory(), "`{name}` in the total");
        for function in quoted(&row[2]) {
            assert!(traced.contains(function), "{function} is not traced");
        }
    }
}

#[test]
fn functions_documented_as_counted_are_hooked() {
    let text = read("docs/guide/faq.md");
    let (_, rest) =
        text.split_once("- **Without a shape**").expect("the FAQ lists the limitations");
    let item = rest.split("\n- ").next().unwrap();
    let functions: Vec<_> =
        quoted(item).into_iter().filter(|word| word.starts_with("cu")).collect();
    assert!(!functions.is_empty(), "{item}");
    for function in functions {
        let hooked = HOOKS.iter().any(|hook| hook.symbol == function);
        assert!(hooked, "the FAQ says that {function} is counted, but it is not hooked");
    }
}

#[test]
fn simulator_variables_and_programs_are_documented() {
    let page = read("docs/internals/simulator.md");
    let first = |row: &Vec<String>| quoted(&row[0])[0].to_owned();
    let described: BTreeSet<String> = table(&page, "| variable |").iter().map(first).collect();
    let source = ["driver/src/settings.rs", "nvml/src/fault.rs", "nvml/src/lib.rs"]
        .map(|file| read(&format!("simulator/{file}")))
        .concat();
    let names = source.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    let known: BTreeSet<String> =
        names.filter(|name| name.starts_with("SIM_")).map(str::to_owned).collect();
    assert_eq!(described, known);

    let programs: BTreeSet<String> = table(&page, "| program |").iter().map(first).collect();
    let output = Command::new(simulator().join("workload")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let list = help.split_once("Commands:\n").unwrap().1;
    let lines = list.lines().take_while(|line| !line.is_empty());
    // The rest of a long description is indented further.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for name in names.filter(|name| !name.is_empty()) {
        assert!(
            name == "help" || programs.contains(name),
            "docs/internals/simulator.md lacks `{name}`"
        );
    }
}

/// Maps a path to its description: uncertainty is described once for reports and processes; so are
/// verdicts, suspect or not, and sites of memory and of tensors.
fn described_as(path: &str) -> String {
    let tensors = path.strip_prefix("tensor_").filter(|p| p.starts_with("sites[]"));
    let path = tensors.unwrap_or(path);
    let own = path.strip_prefix("processes[].").filter(|p| p.starts_with("uncertainty."));
    own.unwrap_or(path).replace("other_verdicts[]", "suspects[]")
}

/// Collects violations of the contract in an object.
pub(crate) fn collect_violations(
    object: &Value,
    path: &str,
    contract: &BTreeMap<String, (String, bool)>,
    problems: &mut BTreeSet<String>,
) {
    let Some(fields) = object.as_object() else { return };
    let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
    for (name, value) in fields {
        let field = format!("{prefix}{name}");
        let actual = type_of(value);
        match contract.get(&described_as(&field)) {
            None => {
                problems.insert(format!("{field} ({actual}) is printed and not described"));
            }
            Some((types, _)) if !types.split(" or ").any(|one| one == actual) => {
                problems.insert(format!("{field} is a {actual}, not a {types}"));
            }
            // Maps by kind have no fixed names.
            Some(_) if name.ends_with("_by_kind") => {}
            Some(_) => collect_violations(value, &field, contract, problems),
        }
        for item in value.as_array().into_iter().flatten() {
            collect_violations(item, &format!("{field}[]"), contract, problems);
        }
    }
    let own = described_as(&prefix);
    for (field, _) in contract.iter().filter(|(_, (_, always))| *always) {
        let name = field.strip_prefix(&own).filter(|name| !name.contains('.'));
        if name.is_some_and(|name| !fields.contains_key(name)) {
            problems.insert(format!("{field} is described as always present but missing"));
        }
    }
}

#[test]
fn trace_json_matches_its_documentation() {
    let contract = contract("docs/reference/json-trace.md");
    let mut problems = BTreeSet::new();
    for (memory, options, workload) in [
        ("8G", &[][..], &["leak3", "--work-ms", "700", "--wait-ms", "1"][..]),
        ("8G", &[], &["kinds"]),
        (
            "8G",
            &["--allocators"],
            &["--hold-ms", "400", "torch-leak", "--steps", "500", "--step-ms", "1"],
        ),
        ("2G", &[], &["oom", "--chunk-mb", "700", "--wait-ms", "1"]),
        ("8G", &[], &["--hold-ms", "1500", "random", "--ops", "2000", "--threads", "4"]),
        ("8G", &[], &["objects", "--count", "5", "--leak", "0.5", "--hold-ms", "500"]),
        ("8G", &["--ring-size", "4096"], &["objects", "--kind", "texture", "--count", "9000"]),
        ("8G", &["--ring-size", "4096"], &["spam", "--throughput", "max", "--count", "100000"]),
    ] {
        let env = TestEnv::new().sharing().env("SIM_MEMORY", memory);
        let traced = env.trace(options, workload);
        assert!(traced.status.success(), "{}", traced.messages);
        traced
            .reports
            .iter()
            .for_each(|report| collect_violations(report, "", &contract, &mut problems));
    }
    for block in blocks("docs/reference/json-trace.md").iter().filter(|block| block.mark == "json")
    {
        collect_violations(
            &serde_json::from_str(&block.text).unwrap(),
            "",
            &contract,
            &mut problems,
        );
    }
    // Some fields cannot occur on the simulated driver; each must at least be a field in the code.
    let sources = [
        "live/json/mod.rs",
        "live/json/parts.rs",
        "live/json/sites.rs",
        "explain/mod.rs",
        "frame_json.rs",
        "verdict/json.rs",
        "view/json.rs",
        "analysis/json.rs",
    ];
    let source = sources.map(|name| read(&format!("crates/formats/src/report/{name}"))).join("\n");
    let identifiers: BTreeSet<&str> =
        source.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    for field in contract.keys() {
        if !identifiers.contains(field.rsplit('.').next().unwrap()) {
            problems.insert(format!("{field} is described and never printed"));
        }
    }
    assert!(problems.is_empty(), "docs/reference/json-trace.md: {problems:#?}");
}

#[test]
fn kernels_json_matches_its_documentation() {
    let contract = contract("docs/reference/json-kernels.md");
    let mut problems = BTreeSet::new();
    for (options, workload) in [
        (&[][..], &["launches", "--iterations", "40", "--graphs", "2", "--failing", "2"][..]),
        (&[], &["copies"]),
        (&["--activity-table-size", "8"], &["launches", "--iterations", "9", "--kernels", "50"]),
    ] {
        let traced = TestEnv::new().kernels(options, workload);
        assert!(traced.status.success(), "{}", traced.messages);
        traced
            .reports
            .iter()
            .for_each(|report| collect_violations(report, "", &contract, &mut problems));
    }
    assert!(problems.is_empty(), "docs/reference/json-kernels.md: {problems:#?}");
}
