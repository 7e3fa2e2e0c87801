//! Size of an image of GPU code, from its header. Text (PTX) has none.

/// First word of a fat binary, and of an ELF file.
const FAT_BINARY: u32 = 0xBA55_ED50;
const ELF: u32 = 0x464C_457F;

/// Larger images do not exist; the header is data of the program.
const MAX_BYTES: u64 = 1 << 36;

/// Returns the size of the image with this header; `None` if it is of another kind or implausible.
pub(super) fn bytes(header: &[u8; 64]) -> Option<u64> {
    let byte = |at: usize| u64::from(header.get(at).copied().unwrap_or(0));
    let number =
        |at: usize, count: usize| (0..count).rev().fold(0_u64, |sum, i| sum << 8 | byte(at + i));
    let all = match u32::try_from(number(0, 4)).ok()? {
        // The size of the header, and of what follows.
        FAT_BINARY => number(6, 2).checked_add(number(8, 8))?,
        // The ends of the tables of segments and sections, of which one ends the file.
        ELF => {
            let end = |offset: usize, size: usize, count: usize| {
                number(offset, 8).checked_add(number(size, 2) * number(count, 2))
            };
            end(32, 54, 56)?.max(end(40, 58, 60)?)
        }
        _ => return None,
    };
    (64..=MAX_BYTES).contains(&all).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(parts: &[(usize, &[u8])]) -> [u8; 64] {
        let mut header = [0; 64];
        for (at, bytes) in parts {
            header[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        header
    }

    #[test]
    fn sizes_are_those_of_the_headers() {
        let fat = header(&[(0, &[0x50, 0xED, 0x55, 0xBA]), (6, &[16]), (8, &[0, 0, 1])]);
        assert_eq!(bytes(&fat), Some(65_536 + 16));
        let elf = header(&[
            (0, b"\x7fELF"),
            (32, &[64]),
            (40, &[0, 16]),
            (54, &[56]),
            (56, &[2]),
            (58, &[64]),
            (60, &[10]),
        ]);
        assert_eq!(bytes(&elf), Some(4096 + 640));
    }

    #[test]
    fn other_and_implausible_images_have_no_size() {
        assert_eq!(bytes(&[0; 64]), None);
        assert_eq!(bytes(&[0xFF; 64]), None);
        assert_eq!(bytes(&header(&[(0, b".version 8.0")])), None);
        let huge = header(&[(0, &[0x50, 0xED, 0x55, 0xBA]), (8, &[0xFF; 8])]);
        assert_eq!(bytes(&huge), None);
        let empty = header(&[(0, b"\x7fELF")]);
        assert_eq!(bytes(&empty), None);
    }
}
