//! Files that processes map: the mappings in `/proc`, how their files are opened, and ELF files that
//! stay mapped here. Neither the files nor their paths are trusted.

mod elf_image;
mod maps;
mod sigbus_guard;

pub(crate) use elf_image::{Elf, ElfImage, FileRange, ImageError, map, symbols};
pub use maps::Mapping;
pub(crate) use maps::{FileId, MappingKind, mappings, open_regular, parse};
pub(crate) use sigbus_guard::page_size;
