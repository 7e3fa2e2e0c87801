//! The hook table in the form that the library reads.

use super::area::{MAX_SYMBOL, Row};
use crate::hooks::{HOOKS, HookGroup};
use crate::session::SessionOptions;

/// Functions with arguments on the stack, and their size in 8-byte words: they have more than six
/// arguments, or a 64-byte handle that is passed by value.
const STACK_ARGUMENTS: &[(&str, u8)] = &[
    ("cuLaunchKernel", 5),
    ("cuLaunchKernel_ptsz", 5),
    ("cuLaunchCooperativeKernel", 4),
    ("cuLaunchCooperativeKernel_ptsz", 4),
    ("cuMemcpyBatchAsync", 3),
    ("cuMemcpyBatchAsync_ptsz", 3),
    ("cuMemcpyBatchAsync_v2", 2),
    ("cuMemcpyBatchAsync_v2_ptsz", 2),
    ("cuLibraryLoadData", 2),
    ("cuLibraryLoadFromFile", 2),
    ("cuIpcOpenMemHandle", 8),
    ("cuIpcOpenMemHandle_v2", 8),
    ("cuIpcOpenEventHandle", 8),
];

fn stack_words(symbol: &str) -> u8 {
    STACK_ARGUMENTS.iter().find(|(name, _)| *name == symbol).map_or(0, |(_, words)| *words)
}

/// Fills the rows of the hook table. Returns their number.
pub(super) fn fill(rows: &mut [Row], options: &SessionOptions) -> usize {
    for (row, hook) in rows.iter_mut().zip(HOOKS) {
        let is_wanted = match hook.semantics.meaning().group {
            HookGroup::Memory => true,
            // Contexts are known from the first call on: none exists before `cuInit`.
            HookGroup::Queries => false,
            HookGroup::Activity | HookGroup::Launches => options.activity.is_some(),
            HookGroup::Objects => options.objects,
        };
        row.hook = hook.to_wire(options.objects);
        row.stack_words = stack_words(hook.symbol);
        row.is_wanted = is_wanted.into();
        set_symbol(row, hook.symbol.as_bytes());
    }
    HOOKS.len().min(rows.len())
}

fn set_symbol(row: &mut Row, symbol: &[u8]) {
    row.symbol = [0; MAX_SYMBOL];
    for (to, from) in row.symbol.iter_mut().take(MAX_SYMBOL - 1).zip(symbol) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Types that are passed in one register each.
    const IN_REGISTERS: &[&str] = &[
        "OutParam<",
        "InParam<",
        "InString",
        "AttributeOut",
        "*const ",
        "*mut ",
        "Handle",
        "DevicePointer",
        "CuDevice",
        "u8",
        "u16",
        "u32",
        "u64",
        "usize",
        "c_int",
        "c_uint",
        "c_char",
        "i32",
        "Function",
        "Option<",
    ];

    /// Functions that the simulated driver does not have. In `cuda.h` they have at most six
    /// arguments, none of them a structure.
    const NOT_SIMULATED: &[&str] = &[
        "cuMemAlloc",
        "cuMemFree",
        "cuMemPoolImportFromShareableHandle",
        "cuStreamBeginCapture_ptsz",
        "cuStreamBeginCaptureToGraph",
        "cuStreamBeginCaptureToGraph_ptsz",
        "cuGraphAddNode_v2",
        "cuGraphInstantiateWithParams",
        "cuGraphInstantiateWithParams_ptsz",
    ];

    /// Returns the 8-byte words of an argument on the stack; `None` if it is passed in a register.
    fn by_value(argument: &str) -> Option<usize> {
        let kind = argument.split_once(": ").map(|(_, kind)| kind.trim()).unwrap();
        match kind {
            "IpcHandle" | "EventTicket" => Some(8),
            _ if IN_REGISTERS.iter().any(|known| kind.starts_with(known)) => None,
            _ => panic!("unknown type: {argument}"),
        }
    }

    /// Returns the words on the stack of a function with these arguments.
    fn words(arguments: &str) -> usize {
        let arguments = arguments.split(',').filter(|word| word.contains(": "));
        let words: Vec<_> = arguments.map(by_value).collect();
        let registers = words.iter().filter(|words| words.is_none()).count();
        registers.saturating_sub(6) + words.into_iter().flatten().sum::<usize>()
    }

    /// Returns the files in a directory and its subdirectories.
    fn files(dir: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    /// Returns the arguments of each function that the simulated driver exports.
    fn prototypes() -> HashMap<String, String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../simulator/driver/src/api");
        let mut found = HashMap::new();
        for file in files(&sources) {
            let text = std::fs::read_to_string(file).unwrap();
            for class in ["call ", "alloc ", "free ", "activity "] {
                for (start, _) in text.match_indices(&format!("    {class}cu")) {
                    let rest = &text[start + 4 + class.len()..];
                    let (Some(open), Some(end)) = (rest.find('('), rest.find(") =")) else {
                        continue;
                    };
                    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                    if !rest[..open].bytes().all(is_name) {
                        continue;
                    }
                    found.insert(rest[..open].to_owned(), rest[open + 1..end].to_owned());
                }
            }
        }
        found
    }

    #[test]
    fn stack_arguments_match_simulator_prototypes() {
        let prototypes = prototypes();
        assert!(prototypes.len() > 200, "{}", prototypes.len());
        let mut unknown = Vec::new();
        for hook in HOOKS {
            match prototypes.get(hook.symbol) {
                Some(arguments) => {
                    let words = words(arguments);
                    assert_eq!(usize::from(stack_words(hook.symbol)), words, "{}", hook.symbol);
                }
                None => unknown.push(hook.symbol),
            }
        }
        assert_eq!(unknown, NOT_SIMULATED);
        assert!(NOT_SIMULATED.iter().all(|symbol| stack_words(symbol) == 0));
    }

    #[test]
    fn symbols_fit_into_rows() {
        assert!(HOOKS.iter().all(|hook| hook.symbol.len() < MAX_SYMBOL));
    }
}
