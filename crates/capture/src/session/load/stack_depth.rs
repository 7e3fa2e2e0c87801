//! Stack usage of the probes. Kernels limit a chain of calls to 512 bytes in total; since 6.13 they
//! accept more in programs without a tail call.

use std::collections::HashMap;

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SymbolKind};

use super::bpf_object::BPF_OBJECT;

/// The limit of the kernel, and the multiple to which the oldest kernels round up each frame.
const MAX_STACK_BYTES: u32 = 512;
const STACK_ROUNDING: u32 = 32;

/// The frame register and the opcodes that matter here.
const FRAME: u8 = 10;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
const CALL: u8 = 0x85;
const LOAD_WIDE: u8 = 0x18;
/// Values of the source register in a call: of a helper, of another function of the object.
const HELPER: u8 = 0;
const OWN_FUNCTION: u8 = 1;
const TAIL_CALL: i32 = 12;

/// Section and offset of a function.
type FunctionOffset = (SectionIndex, u64);

struct Function {
    name: String,
    /// Of a program; empty for a function that programs call.
    section: String,
    stack_bytes: u32,
    calls: Vec<FunctionOffset>,
    has_tail_call: bool,
}

struct Instruction {
    operation: u8,
    target: u8,
    source: u8,
    offset: i16,
    number: i32,
}

impl Instruction {
    fn read(bytes: &[u8]) -> Self {
        Self {
            operation: bytes[0],
            target: bytes[1] & 0xf,
            source: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            number: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }

    /// Distance below the frame register at which it loads or stores.
    fn stack_bytes(&self) -> u32 {
        let uses_frame = match self.operation & 7 {
            1 => self.source == FRAME,
            2 | 3 => self.target == FRAME,
            _ => false,
        };
        if uses_frame { u32::from(self.offset.unsigned_abs()) } else { 0 }
    }
}

fn functions(file: &object::File<'_>) -> HashMap<FunctionOffset, Function> {
    let mut all = HashMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let Some(index) = symbol.section_index().filter(|_| symbol.size() > 0) else { continue };
        let section = file.section_by_index(index).unwrap();
        let begin = symbol.address() as usize;
        let code = &section.data().unwrap()[begin..begin + symbol.size() as usize];
        let function = function(file, &section, symbol.address(), code);
        let name = symbol.name().unwrap().to_owned();
        let section = section.name().unwrap().trim_start_matches(".text").to_owned();
        all.insert((index, symbol.address()), Function { name, section, ..function });
    }
    all
}

fn function(
    file: &object::File<'_>,
    section: &object::Section<'_, '_>,
    begin: u64,
    code: &[u8],
) -> Function {
    let relocations: HashMap<u64, _> = section.relocations().collect();
    let target = |at: u64| match relocations.get(&at)?.target() {
        RelocationTarget::Symbol(index) => file.symbol_by_index(index).ok(),
        _ => None,
    };
    let (mut stack_bytes, mut calls, mut is_frame) = (0, Vec::new(), [false; 16]);
    let mut has_tail_call = false;
    for (number, bytes) in code.chunks_exact(8).enumerate() {
        let at = begin + number as u64 * 8;
        let one = Instruction::read(bytes);
        stack_bytes = stack_bytes.max(one.stack_bytes());
        match one.operation {
            MOVE => is_frame[usize::from(one.target)] = one.source == FRAME,
            ADD if is_frame[usize::from(one.target)] => {
                stack_bytes = stack_bytes.max(one.number.unsigned_abs());
            }
            CALL if one.source == OWN_FUNCTION => calls.extend(match target(at) {
                // Kernel functions have no section.
                Some(symbol) => symbol.section_index().map(|index| match symbol.kind() {
                    SymbolKind::Section => (index, (i64::from(one.number) + 1) as u64 * 8),
                    _ => (index, symbol.address()),
                }),
                None => {
                    let there = at.wrapping_add_signed((i64::from(one.number) + 1) * 8);
                    Some((section.index(), there))
                }
            }),
            CALL if one.source == HELPER => has_tail_call |= one.number == TAIL_CALL,
            // bpf_loop() gets the address of a function.
            LOAD_WIDE => calls.extend(target(at).and_then(|symbol| {
                let address = match symbol.kind() {
                    SymbolKind::Section => u64::from(one.number.unsigned_abs()),
                    _ => symbol.address(),
                };
                Some((symbol.section_index()?, address))
            })),
            _ => (),
        }
    }
    Function { name: String::new(), section: String::new(), stack_bytes, calls, has_tail_call }
}

/// Returns the stack usage of a function and its deepest chain of calls, with their names.
fn depth(all: &HashMap<FunctionOffset, Function>, offset: FunctionOffset) -> (u32, String) {
    let Some(function) = all.get(&offset) else { return (0, String::new()) };
    let (below, names) =
        function.calls.iter().map(|call| depth(all, *call)).max().unwrap_or_default();
    let own = function.stack_bytes.max(1).next_multiple_of(STACK_ROUNDING);
    (own + below, format!("{} {}, {names}", function.name, function.stack_bytes))
}

#[test]
fn probes_fit_into_the_bpf_stack_limit() {
    let file = object::File::parse(BPF_OBJECT).unwrap();
    let all = functions(&file);
    let programs = all.iter().filter(|(_, function)| !function.section.is_empty());
    let depths: Vec<_> = programs.map(|(offset, _)| depth(&all, *offset)).collect();
    assert!(depths.len() >= 15, "{depths:?}");
    let (max, names) = depths.iter().max().unwrap();
    let has_callback = |(_, names): &(u32, String)| names.contains("next_");
    assert!(
        depths.iter().any(has_callback),
        "no chain ends in a callback of bpf_loop(): {depths:?}"
    );
    assert!(*max <= MAX_STACK_BYTES, "{max} bytes: {names}");
}

/// Without it, newer kernels keep variables of the functions in memory of the CPU, where other threads
/// overwrite them; see `USE_STACK_OF_THREAD`.
#[test]
fn preemptible_probes_have_a_tail_call() {
    let file = object::File::parse(BPF_OBJECT).unwrap();
    let mut checked = 0;
    for function in functions(&file).values() {
        let is_preemptible = ["uprobe", "uretprobe"]
            .iter()
            .any(|prefix| function.section.trim_start_matches('?').starts_with(prefix));
        if is_preemptible && !function.calls.is_empty() {
            assert!(function.has_tail_call, "{}", function.name);
            checked += 1;
        }
    }
    assert!(checked >= 12, "{checked} programs");
}
