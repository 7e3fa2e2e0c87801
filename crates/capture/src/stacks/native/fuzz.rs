//! Fuzz target: unwind tables and debug information of one file.

use std::path::Path;
use std::sync::Arc;

use engine::model::ids::Pid;
use object::{Object, ObjectSection};

use super::arch;
use super::modules::{Module, ModuleRegistry};
use super::perf_map::GeneratedCode;
use super::symbolizer::NativeSymbolizer;
use super::unwind::{FrameLocation, Registers};
use super::unwind_rules::{RuleCaches, StackCopy, UnwindRules, UnwindStep};
use crate::files::{ElfImage, open_regular};

/// Number of places of the file that are unwound and symbolized.
const PLACES: u64 = 24;
/// Number of frames of each stack.
const FRAMES: usize = 8;
/// Maximum size of a name, with what demangling adds to a truncated one.
const MAX_NAME_BYTES: usize = 17 << 10;
/// Address of the stack, and its size in words.
const STACK: u64 = 0x7f00_0000_0000;
const STACK_WORDS: u64 = 64;

/// Unwinds from, and symbolizes, places all over the code of a file. Returns whether a place has a
/// name.
pub(crate) fn dwarf(path: &Path) -> bool {
    let Some(image) = open_regular(path).ok().and_then(|file| ElfImage::of(file).ok()) else {
        return false;
    };
    let mut rules = UnwindRules::of(&image);
    let mut caches = RuleCaches::default();
    let (start, bytes) = image.elf().map_or((0, 0), |elf| {
        let text = elf.section_by_name(".text").and_then(|text| text.file_range());
        text.unwrap_or((0, u64::from(u32::MAX)))
    });
    let step = (bytes / PLACES).max(1);
    let offsets: Vec<_> = (0..PLACES).map(|n| start.saturating_add(n * step)).collect();
    for address in offsets.iter().filter_map(|offset| image.address(*offset)) {
        unwind(&mut rules, &mut caches, address);
    }
    let registry = ModuleRegistry::default();
    let Some(module) = registry.push(Arc::new(Module { path: "file".into(), image: Ok(image) }))
    else {
        return false;
    };
    let mut symbolizer = NativeSymbolizer::new(registry);
    let generated = GeneratedCode::new(Pid(0));
    let mut named = false;
    for offset in offsets {
        let frames = symbolizer.frames(&FrameLocation::File { module, offset }, false, &generated);
        assert!(!frames.is_empty());
        for frame in frames.iter() {
            let file = frame.file.as_ref().map_or(0, |file| file.len());
            assert!(frame.function.len().max(file) <= MAX_NAME_BYTES, "{file} bytes");
            named |= !frame.function.is_empty();
        }
    }
    named
}

/// Follows a stack whose words lead to all parts of the code around an address.
fn unwind(rules: &mut UnwindRules, caches: &mut RuleCaches, address: u64) {
    let words = (0..STACK_WORDS).map(|n| {
        if n % 2 == 0 { address.wrapping_add(n * 8) } else { STACK.wrapping_add(n * 8 + 16) }
    });
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let stack = StackCopy { from: STACK, bytes: &bytes };
    let mut next = address.wrapping_add(1);
    let mut registers = arch::unwind_regs(Registers { ip: next, sp: STACK, bp: STACK + 32 });
    for _ in 0..FRAMES {
        let before = registers.sp();
        match caches.step(rules, next, &mut registers, &stack) {
            UnwindStep::Caller { address, .. } => {
                assert!(registers.sp() > before, "{before:#x} to {:#x}", registers.sp());
                next = address;
            }
            UnwindStep::Start | UnwindStep::Unread(_) | UnwindStep::NoRule => break,
        }
    }
}
