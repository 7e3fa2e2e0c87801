//! Functions that align the stack anew and keep the way back in their frame.
//!
//! Their tables say that the caller's stack pointer is read from memory, next to the frame pointer.
//! framehop reads no memory for that. It follows the frame pointer instead, where compilers leave a
//! second copy of the return address, and goes wrong one frame later.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, Encoding, EndianSlice, Expression, LittleEndian,
    Operation, RegisterRule, UnwindContext, UnwindSection, X86_64,
};
use hashbrown::HashMap;

use super::image::{Elf, Image, Piece};

/// Addresses of one file that are remembered; when there are more, all are forgotten.
const MOST: usize = 1 << 16;
/// Bytes of tables that are searched from end to end.
const MOST_WITHOUT_INDEX: usize = 4 << 20;

/// How to get out of such a function; both are relative to its frame pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Realigned {
    /// Where the caller's stack pointer is.
    pub(super) stack: i64,
    /// Where the caller's frame pointer is.
    pub(super) frame: i64,
}

/// Finds such functions in the tables of a file.
pub(super) struct Finder {
    /// Programs that are linked statically have none.
    index: Option<Piece>,
    frames: Piece,
    bases: BaseAddresses,
    known: HashMap<u64, Option<Realigned>>,
}

impl Finder {
    /// `None` where the file has no tables.
    pub(super) fn new(image: &Image, elf: &Elf<'_>) -> Option<Self> {
        let (index_at, index) = image.section(elf, ".eh_frame_hdr").unzip();
        let (frames_at, frames) = image.section(elf, ".eh_frame")?;
        if index.is_none() && frames.len() > MOST_WITHOUT_INDEX {
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

    /// The way out of the function at an address, if it is one of those.
    pub(super) fn at(&mut self, address: u64) -> Option<Realigned> {
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        let found = self.look_up(address);
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(address, found);
        found
    }

    fn look_up(&self, address: u64) -> Option<Realigned> {
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
        let (stack, is_read) = beside_frame_pointer(stack.get(&frames).ok()?, encoding)?;
        let frame = match row.register(X86_64::RBP)? {
            RegisterRule::Expression(frame) => frame,
            _ => return None,
        };
        let (frame, is_place_read) = beside_frame_pointer(frame.get(&frames).ok()?, encoding)?;
        (is_read && !is_place_read).then_some(Realigned { stack, frame })
    }
}

/// An expression that is a place beside the frame pointer, and whether it says what is read there.
fn beside_frame_pointer(
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
