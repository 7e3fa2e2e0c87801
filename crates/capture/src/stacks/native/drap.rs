//! Functions that realign the stack and save the caller's stack pointer in their frame (DRAP).
//!
//! In their unwind tables the caller's stack pointer is read from memory, relative to the frame
//! pointer. framehop does not support this rule. It follows the frame pointer instead, where
//! compilers leave a second copy of the return address, and fails one frame later.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, Encoding, EndianSlice, Expression, LittleEndian,
    Operation, RegisterRule, UnwindContext, UnwindSection, X86_64,
};
use hashbrown::HashMap;

use crate::files::{Elf, ElfImage, FileRange};

/// Maximum number of cached addresses per file; beyond it all are dropped.
const MAX_CACHED_ADDRESSES: usize = 1 << 16;
/// Maximum size of tables that are searched linearly.
const MAX_LINEAR_SEARCH_BYTES: usize = 4 << 20;

/// Unwind rule of such a function; offsets from its frame pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DrapRule {
    /// Offset of the saved stack pointer of the caller.
    pub(super) stack: i64,
    /// Offset of the saved frame pointer of the caller.
    pub(super) frame: i64,
}

/// Finds such functions in the unwind tables of a file.
pub(super) struct DrapFinder {
    /// Statically linked programs have none.
    index: Option<FileRange>,
    frames: FileRange,
    bases: BaseAddresses,
    known: HashMap<u64, Option<DrapRule>>,
}

impl DrapFinder {
    /// Returns `None` if the file has no tables.
    pub(super) fn new(image: &ElfImage, elf: &Elf<'_>) -> Option<Self> {
        let (index_at, index) = image.section(elf, ".eh_frame_hdr").unzip();
        let (frames_at, frames) = image.section(elf, ".eh_frame")?;
        if index.is_none() && frames.len() > MAX_LINEAR_SEARCH_BYTES {
            return None;
        }
        let start = |name| image.section(elf, name).map_or(0, |(at, _): (Range<u64>, _)| at.start);
        let bases = BaseAddresses::default()
            .set_eh_frame_hdr(index_at.map_or(0, |at| at.start))
            .set_eh_frame(frames_at.start)
            .set_text(start(".text"))
            .set_got(start(".got"));
        Some(Self { index, frames, bases, known: HashMap::new() })
    }

    /// Returns the rule of the function at an address, if it realigns the stack.
    pub(super) fn at(&mut self, address: u64) -> Option<DrapRule> {
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        let found = self.look_up(address);
        if self.known.len() >= MAX_CACHED_ADDRESSES {
            self.known.clear();
        }
        self.known.insert(address, found);
        found
    }

    fn look_up(&self, address: u64) -> Option<DrapRule> {
        let mut frames = EhFrame::new(&self.frames, LittleEndian);
        frames.set_address_size(8);
        let cie = EhFrame::cie_from_offset;
        let function = match &self.index {
            Some(index) => {
                let index = EhFrameHdr::new(index, LittleEndian).parse(&self.bases, 8).ok()?;
                index.table()?.fde_for_address(&frames, &self.bases, address, cie).ok()?
            }
            None => frames.fde_for_address(&self.bases, address, cie).ok()?,
        };
        let mut context = UnwindContext::new();
        let row =
            function.unwind_info_for_address(&frames, &self.bases, &mut context, address).ok()?;
        let encoding = function.cie().encoding();
        let CfaRule::Expression(stack) = row.cfa() else { return None };
        let (stack, is_read) = frame_pointer_offset(stack.get(&frames).ok()?, encoding)?;
        let RegisterRule::Expression(frame) = row.register(X86_64::RBP)? else { return None };
        let (frame, is_slot_read) = frame_pointer_offset(frame.get(&frames).ok()?, encoding)?;
        (is_read && !is_slot_read).then_some(DrapRule { stack, frame })
    }
}

/// Returns the offset of an expression relative to the frame pointer, and whether it is
/// dereferenced.
fn frame_pointer_offset(
    expression: Expression<EndianSlice<'_, LittleEndian>>,
    encoding: Encoding,
) -> Option<(i64, bool)> {
    let mut operations = expression.operations(encoding);
    let Operation::RegisterOffset { register: X86_64::RBP, offset, .. } =
        operations.next().ok()??
    else {
        return None;
    };
    match operations.next().ok()? {
        None => Some((offset, false)),
        Some(Operation::Deref { size: 8, space: false, .. }) => {
            operations.next().ok()?.is_none().then_some((offset, true))
        }
        Some(_) => None,
    }
}
