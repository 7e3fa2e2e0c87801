//! How much stack the probes take: kernels before 6.13 give all functions that call each other 512 bytes
//! together, and newer ones do not tell when that is too little.

use std::collections::HashMap;

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SymbolKind};

use super::object::OBJECT;

/// What the kernel allows, and to what the oldest round up what each function takes.
const MOST: u32 = 512;
const STEP: u32 = 32;

/// The register of the frame, and the operations that are looked for.
const FRAME: u8 = 10;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
const CALL: u8 = 0x85;
const LOAD_WIDE: u8 = 0x18;
/// A call of another function of the object, in the place of a register.
const OWN_FUNCTION: u8 = 1;

/// Where a function begins.
type Place = (SectionIndex, u64);

struct Function {
    name: String,
    is_program: bool,
    takes: u32,
    calls: Vec<Place>,
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

    /// How far below the frame it loads or stores.
    fn touches(&self) -> u32 {
        let of_frame = match self.operation & 7 {
            1 => self.source == FRAME,
            2 | 3 => self.target == FRAME,
            _ => false,
        };
        if of_frame { u32::from(self.offset.unsigned_abs()) } else { 0 }
    }
}

fn functions(file: &object::File<'_>) -> HashMap<Place, Function> {
    let mut all = HashMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let Some(index) = symbol.section_index().filter(|_| symbol.size() > 0) else { continue };
        let section = file.section_by_index(index).unwrap();
        let begin = symbol.address() as usize;
        let code = &section.data().unwrap()[begin..begin + symbol.size() as usize];
        let function = function(file, &section, symbol.address(), code);
        let (name, is_program) = (symbol.name().unwrap().to_owned(), section.name() != Ok(".text"));
        all.insert((index, symbol.address()), Function { name, is_program, ..function });
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
    let (mut takes, mut calls, mut of_frame) = (0, Vec::new(), [false; 16]);
    for (number, bytes) in code.chunks_exact(8).enumerate() {
        let at = begin + number as u64 * 8;
        let one = Instruction::read(bytes);
        takes = takes.max(one.touches());
        match one.operation {
            MOVE => of_frame[usize::from(one.target)] = one.source == FRAME,
            ADD if of_frame[usize::from(one.target)] => {
                takes = takes.max(one.number.unsigned_abs())
            }
            CALL if one.source == OWN_FUNCTION => calls.extend(match target(at) {
                // A function of the kernel is in no section.
                Some(symbol) => symbol.section_index().map(|index| match symbol.kind() {
                    SymbolKind::Section => (index, (i64::from(one.number) + 1) as u64 * 8),
                    _ => (index, symbol.address()),
                }),
                None => {
                    let there = at.wrapping_add_signed((i64::from(one.number) + 1) * 8);
                    Some((section.index(), there))
                }
            }),
            // Loops call a function that they are given.
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
    Function { name: String::new(), is_program: false, takes, calls }
}

/// What a function and all that it calls take, and the names of those.
fn depth(all: &HashMap<Place, Function>, place: Place) -> (u32, String) {
    let Some(function) = all.get(&place) else { return (0, String::new()) };
    let (below, names) =
        function.calls.iter().map(|call| depth(all, *call)).max().unwrap_or_default();
    let own = function.takes.max(1).next_multiple_of(STEP);
    (own + below, format!("{} {}, {names}", function.name, function.takes))
}

#[test]
fn the_probes_fit_on_the_stack_of_every_kernel() {
    let file = object::File::parse(OBJECT).unwrap();
    let all = functions(&file);
    let programs = all.iter().filter(|(_, function)| function.is_program);
    let depths: Vec<_> = programs.map(|(place, _)| depth(&all, *place)).collect();
    assert!(depths.len() >= 15, "{depths:?}");
    let (most, names) = depths.iter().max().unwrap();
    // The deepest one reads frames of Python, in a function that a loop calls.
    assert!(*most > 300 && names.contains("next_frame"), "{most}: {names}");
    assert!(*most <= MOST, "{most} bytes: {names}");
}
