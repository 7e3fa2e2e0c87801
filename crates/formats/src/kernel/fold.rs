//! Long names of kernels made short.

/// Names that tell little by themselves: the template arguments say what is done. A name is one of
/// them if it contains one of these words.
const GENERIC: [&str; 9] = [
    "elementwise",
    "reduce_kernel",
    "multi_tensor_apply",
    "Kernel2",
    "device_kernel",
    "kernel_agent",
    "DeviceReduce",
    "DeviceScan",
    "static_kernel",
];

/// Templates around what is done: what is inside tells more.
const WRAPPERS: [&str; 10] = [
    "AUnaryFunctor",
    "BUnaryFunctor",
    "BinaryFunctor",
    "ParallelForAgent",
    "ReduceOp",
    "enable_sm80_to_sm89",
    "enable_sm90_or_later",
    "func_wrapper_t",
    "gpu_kernel_impl",
    "gpu_kernel_impl_nocast",
];

/// Types of data, which do not tell what is done with it.
const DATA: [&str; 14] = [
    "Array",
    "BFloat16",
    "Half",
    "__half",
    "__nv_bfloat16",
    "array",
    "bfloat16_t",
    "complex",
    "device_ptr",
    "half_t",
    "integral_constant",
    "null_type",
    "string",
    "tuple",
];

/// Parts of names of types that are about how something is done, not about what.
const MANNER: [&str; 5] = ["Policy", "raits", "terator", "Metadata", "OffsetCalculator"];

/// First words of types of the language itself.
const BUILTIN: [&str; 14] = [
    "bool", "char", "char16_t", "char32_t", "decltype", "double", "float", "int", "long", "short",
    "signed", "unsigned", "void", "wchar_t",
];

/// Last words that need the one before them.
const EMPTY: [&str; 5] = ["functor", "kernel", "op", "type", "impl"];

/// How many wrappers deep the telling name is looked for.
const WRAPPED: usize = 8;

/// How deep brackets may be nested; what is deeper is left as it is.
const NESTED: usize = 1024;

/// Operators whose names have brackets, longer ones first.
const OPERATORS: [&str; 13] =
    ["<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">", "()", "[]"];

/// A part of a text: either outside of all brackets, or one outermost pair with what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Piece<'a> {
    Text(&'a str),
    Group(&'a str),
}

/// How many bytes the name of an operator with brackets takes at a place, if there is one.
fn operator_at(text: &str, place: usize) -> Option<usize> {
    const WORD: &str = "operator";
    let after = text.get(place..)?.strip_prefix(WORD)?;
    let sign = OPERATORS.iter().find(|sign| after.starts_with(**sign))?;
    Some(WORD.len() + sign.len())
}

/// The closing bracket of an opening one.
const fn closing(open: u8) -> Option<u8> {
    match open {
        b'<' => Some(b'>'),
        b'(' => Some(b')'),
        b'{' => Some(b'}'),
        b'[' => Some(b']'),
        _ => None,
    }
}

/// Cuts a text at its outermost brackets. A bracket that is never closed is text. A `>` closes only
/// what a `<` opened last, so that comparisons in parentheses do no harm.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut start, mut place) = (0, 0);
    let mut open: Vec<u8> = Vec::new();
    let bytes = text.as_bytes();
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    while let Some(byte) = bytes.get(place) {
        if let Some(length) = operator_at(text, place) {
            place += length;
            continue;
        }
        let arrow = *byte == b'>' && place > 0 && bytes.get(place - 1) == Some(&b'-');
        if let Some(close) = closing(*byte) {
            if open.is_empty() && start < place {
                pieces.push(Piece::Text(part(start, place)));
                start = place;
            }
            open.push(close);
            if open.len() > NESTED {
                break;
            }
        } else if matches!(byte, b')' | b'}' | b']') || (*byte == b'>' && !arrow) {
            let from = if *byte == b'>' {
                open.len().checked_sub(1).filter(|last| open.get(*last) == Some(byte))
            } else {
                open.iter().rposition(|close| close == byte)
            };
            if let Some(from) = from {
                open.truncate(from);
                if open.is_empty() {
                    pieces.push(Piece::Group(part(start, place + 1)));
                    start = place + 1;
                }
            }
        }
        place += 1;
    }
    if start < text.len() {
        pieces.push(Piece::Text(part(start, text.len())));
    }
    pieces
}

const ANONYMOUS: &str = "(anonymous namespace)";

/// A part of a qualified name, and its template arguments.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Component<'a> {
    name: String,
    arguments: Option<&'a str>,
}

impl Component<'_> {
    /// Names that compilers and libraries make up, to keep others' names apart.
    fn is_noise(&self) -> bool {
        let version = |prefix: &str| {
            let rest = self.name.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        self.name.is_empty()
            || self.name == ANONYMOUS
            || self.name.starts_with("_GLOBAL__N_")
            || self.name.starts_with("_INTERNAL_")
            || ["CUB_", "THRUST_", "_V_"].into_iter().any(version)
    }
}

/// Where the parameters of the first function in a name are.
fn parameters(pieces: &[Piece<'_>]) -> Option<usize> {
    let follows = |before: &Piece<'_>| match before {
        Piece::Text(text) => {
            let last = text.rsplit("::").next().unwrap_or_default();
            last.starts_with("operator")
                || last.ends_with(|c: char| c.is_alphanumeric() || c == '_')
        }
        Piece::Group(before) => *before != ANONYMOUS,
    };
    let found = pieces.windows(2).position(|pair| match pair {
        [before, Piece::Group(group)] => group.starts_with('(') && follows(before),
        _ => false,
    });
    found.map(|place| place + 1)
}

/// Whether a text is the name of a function with its parameters.
pub(super) fn is_function(text: &str) -> bool {
    parameters(&pieces(text)).is_some()
}

/// The pieces of a name up to the parameters of the first function in it, without return type.
fn head<'a>(pieces: &[Piece<'a>]) -> Vec<Piece<'a>> {
    let end = parameters(pieces).unwrap_or(pieces.len());
    let mut name = pieces.get(..end).unwrap_or_default().to_vec();
    for i in (0..name.len()).rev() {
        let Some(Piece::Text(text)) = name.get(i).copied() else { continue };
        // A conversion has a space in its name.
        let search = text.split("operator").next().unwrap_or_default();
        if let Some(space) = search.rfind(' ') {
            let rest = text.get(space + 1..).unwrap_or_default();
            name.drain(..=i);
            name.insert(0, Piece::Text(rest));
            break;
        }
    }
    name
}

/// The parts of a qualified name, without noise.
fn components<'a>(head: &[Piece<'a>]) -> Vec<Component<'a>> {
    let mut all = vec![Component::default()];
    for piece in head {
        match piece {
            Piece::Text(text) => {
                for (i, word) in text.split("::").enumerate() {
                    if i > 0 {
                        all.push(Component::default());
                    }
                    if let Some(last) = all.last_mut() {
                        last.name.push_str(word);
                    }
                }
            }
            Piece::Group(group) => {
                let Some(last) = all.last_mut() else { continue };
                let inner = group.get(1..group.len().saturating_sub(1)).unwrap_or_default();
                match group.as_bytes().first() {
                    Some(b'<') if !last.name.is_empty() => last.arguments = Some(inner),
                    Some(b'[') if inner.starts_with("abi:") => {}
                    Some(b'{') if inner.starts_with("lambda") => last.name.push_str("{lambda}"),
                    _ => last.name.push_str(group),
                }
            }
        }
    }
    all.retain(|component| !component.is_noise());
    all
}

/// The template arguments in a list of them.
fn arguments(list: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for piece in pieces(list) {
        match piece {
            Piece::Text(text) => {
                for (i, part) in text.split(',').enumerate() {
                    if i > 0 {
                        all.push(String::new());
                    }
                    if let Some(last) = all.last_mut() {
                        last.push_str(part);
                    }
                }
            }
            Piece::Group(group) => {
                if let Some(last) = all.last_mut() {
                    last.push_str(group);
                }
            }
        }
    }
    all
}

/// What a template argument says of what is done, if anything.
fn word(argument: &str, depth: usize) -> Option<String> {
    let argument = argument.trim();
    let argument = argument.strip_suffix(" const").unwrap_or(argument);
    if argument.ends_with(['*', '&']) {
        return None;
    }
    let pieces = pieces(argument);
    let mut parts = components(&head(&pieces));
    while parts.last().is_some_and(|part| part.name.starts_with("operator")) {
        parts.pop();
    }
    let last = parts.pop()?;
    let name = last.name.as_str();
    let first = name.split(' ').next().unwrap_or_default();
    if depth < WRAPPED
        && WRAPPERS.contains(&name)
        && let Some(inner) = last.arguments.and_then(|list| telling(list, depth + 1))
    {
        return Some(inner);
    }
    if !name.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '{')
        || ["true", "false"].contains(&name)
        || name.starts_with("__nv_")
        || BUILTIN.contains(&first)
        || DATA.contains(&name)
        || MANNER.iter().any(|part| name.contains(part))
    {
        return None;
    }
    let parent = parts.pop().filter(|_| EMPTY.contains(&name) || name.starts_with('{'));
    Some(parent.map_or_else(|| name.to_owned(), |parent| format!("{}::{name}", parent.name)))
}

/// The first template argument that says what is done.
fn telling(list: &str, depth: usize) -> Option<String> {
    arguments(list).iter().find_map(|argument| word(argument, depth))
}

fn folded(list: &str, generic: bool) -> String {
    let Some(word) = telling(list, 0).filter(|_| generic) else { return "<…>".to_owned() };
    if word == list.trim() { format!("<{word}>") } else { format!("<{word}, …>") }
}

/// A demangled C++ name for tables.
pub(super) fn short(full: &str) -> String {
    let pieces = pieces(full);
    let parts = components(&head(&pieces));
    let last = parts.len().saturating_sub(1);
    let mut short = String::new();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            short.push_str("::");
        }
        short.push_str(&part.name);
        if let Some(list) = part.arguments {
            let generic = i == last && GENERIC.iter().any(|word| part.name.contains(word));
            short.push_str(&folded(list, generic));
        }
    }
    if short.is_empty() { full.to_owned() } else { short }
}

/// A demangled Rust name for tables: its generic arguments folded.
pub(super) fn generics(full: &str) -> String {
    let mut short = String::new();
    for piece in pieces(full) {
        match piece {
            Piece::Group(group) if group.starts_with('<') && !short.is_empty() => {
                short.push_str("<…>");
            }
            Piece::Text(text) | Piece::Group(text) => short.push_str(text),
        }
    }
    short
}
