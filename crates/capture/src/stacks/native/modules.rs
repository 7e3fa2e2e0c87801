//! Files with code, each once for all processes that map it.

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use engine::model::ids::Pid;
use engine::model::stack::UnknownReason;
use hashbrown::HashMap;

use crate::files::{ElfImage, FileId, ImageError, Mapping, MappingKind, open_regular};

/// Maximum number of files kept. Each takes a mapping, of which a process may have 65,530.
const MAX_MODULES: usize = 1 << 14;

/// Maximum size of a vDSO; real ones have a few pages.
const MAX_VDSO_BYTES: u64 = 1 << 20;

/// A file with code. Ids count from 0 and never change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ModuleId(pub(crate) u32);

/// A file with code.
pub(super) struct Module {
    /// The path as the first process that mapped it sees it. Untrusted text.
    pub(super) path: Arc<str>,
    /// The file, or the reason why it cannot be read.
    pub(super) image: Result<ElfImage, UnknownReason>,
}

/// All modules by id, shared between threads.
#[derive(Clone, Default)]
pub(crate) struct ModuleRegistry(Arc<RwLock<Vec<Arc<Module>>>>);

impl ModuleRegistry {
    /// Returns the path of a module as a process sees it, without ` (deleted)`; empty for an
    /// unknown id. Untrusted text.
    pub(crate) fn path(&self, id: ModuleId) -> Arc<str> {
        self.get(id).map_or_else(|| Arc::from(""), |module| Arc::clone(&module.path))
    }

    pub(super) fn get(&self, id: ModuleId) -> Option<Arc<Module>> {
        let modules = self.0.read().unwrap_or_else(PoisonError::into_inner);
        modules.get(id.0 as usize).cloned()
    }

    pub(super) fn push(&self, module: Arc<Module>) -> Option<ModuleId> {
        let mut modules = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let id = u32::try_from(modules.len()).ok().filter(|_| modules.len() < MAX_MODULES)?;
        modules.push(module);
        Some(ModuleId(id))
    }
}

/// Identity of a file in the file system. While it is mapped here its inode is not reused.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FileKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Target of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MappingTarget {
    Module(ModuleId),
    /// Not an ELF file: memory that a program fills with code.
    NoModule,
}

/// Finds the module of a mapping.
#[derive(Default)]
pub(super) struct ModuleFinder {
    registry: ModuleRegistry,
    by_file: HashMap<FileKey, MappingTarget>,
    by_build_id: HashMap<Arc<[u8]>, Vec<ModuleId>>,
    /// Files that cannot be opened, by what `/proc` shows of them.
    unopened: HashMap<(FileId, PathBuf), ModuleId>,
}

impl ModuleFinder {
    pub(super) fn registry(&self) -> &ModuleRegistry {
        &self.registry
    }

    /// Returns the module of a mapping; `None` if the limit is reached.
    pub(super) fn find(&mut self, mapping: &Mapping) -> Option<MappingTarget> {
        let file = match mapping.kind {
            MappingKind::File => open(mapping),
            MappingKind::Vdso => vdso(mapping).ok_or_else(|| unopened_reason(mapping.pid)),
            MappingKind::Probes | MappingKind::Anonymous => return Some(MappingTarget::NoModule),
        };
        let file = match file {
            Ok(file) => file,
            Err(reason) => return self.without_file(mapping, reason),
        };
        let Some(key) = key(&file) else {
            return self.without_file(mapping, UnknownReason::Unreadable);
        };
        if let Some(found) = self.by_file.get(&key) {
            return Some(*found);
        }
        if self.by_file.len() >= 2 * MAX_MODULES {
            return None;
        }
        let found = match ElfImage::of(file) {
            Ok(image) => MappingTarget::Module(self.with_image(mapping, image)?),
            Err(ImageError::NotElf) => MappingTarget::NoModule,
            Err(ImageError::Unreadable) => {
                return self.without_file(mapping, UnknownReason::Unreadable);
            }
        };
        // A file that is not a module may become one when it is completely written.
        if mapping.kind == MappingKind::File && matches!(found, MappingTarget::Module(_)) {
            self.by_file.insert(key, found);
        }
        Some(found)
    }

    fn with_image(&mut self, mapping: &Mapping, image: ElfImage) -> Option<ModuleId> {
        let same_build =
            image.build_id().and_then(|id| self.by_build_id.get(id)).into_iter().flatten();
        let known = same_build.copied().find(|id| {
            let module = self.registry.get(*id);
            module.is_some_and(|known| known.image.as_ref().is_ok_and(|i| i.is_like(&image)))
        });
        if let Some(known) = known {
            return Some(known);
        }
        let build_id = image.build_id().cloned();
        let path = Arc::from(mapping.path.to_string_lossy());
        let id = self.registry.push(Arc::new(Module { path, image: Ok(image) }))?;
        if let Some(build_id) = build_id {
            self.by_build_id.entry(build_id).or_default().push(id);
        }
        Some(id)
    }

    /// Adds a module without its file: the path and the offset in the file are still known.
    fn without_file(&mut self, mapping: &Mapping, reason: UnknownReason) -> Option<MappingTarget> {
        let key = (mapping.file_id(), mapping.path.clone());
        if let Some(id) = self.unopened.get(&key) {
            return Some(MappingTarget::Module(*id));
        }
        let module = Module { path: Arc::from(mapping.path.to_string_lossy()), image: Err(reason) };
        let id = self.registry.push(Arc::new(module))?;
        self.unopened.insert(key, id);
        Some(MappingTarget::Module(id))
    }
}

fn key(file: &File) -> Option<FileKey> {
    let metadata = file.metadata().ok()?;
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    Some(FileKey { device: metadata.dev(), inode: metadata.ino(), size: metadata.size(), modified })
}

/// Opens the file of a mapping: through the mapping, then by its path as the process sees it, then
/// by its path here, which works after the process has exited.
fn open(mapping: &Mapping) -> Result<File, UnknownReason> {
    if let Ok(file) = mapping.open_mapped() {
        return Ok(file);
    }
    let device = libc::makedev(mapping.device.0, mapping.device.1);
    let is_mapped_file = |file: &File, any_device: bool| {
        let metadata = file.metadata();
        metadata.is_ok_and(|metadata| {
            metadata.ino() == mapping.inode && (any_device || metadata.dev() == device)
        })
    };
    if let Some(file) = mapping.open_by_path().ok().filter(|file| is_mapped_file(file, false)) {
        return Ok(file);
    }
    // The inode of a deleted file may have been reused.
    let plain = (!mapping.deleted).then(|| open_regular(&mapping.path).ok()).flatten();
    plain.filter(|file| is_mapped_file(file, true)).ok_or_else(|| unopened_reason(mapping.pid))
}

fn unopened_reason(pid: Pid) -> UnknownReason {
    let exists = Path::new(&format!("/proc/{pid}")).exists();
    if exists { UnknownReason::Unreadable } else { UnknownReason::ProcessExited }
}

/// Copies the vDSO of a process, which exists only in memory, into a file.
fn vdso(mapping: &Mapping) -> Option<File> {
    let bytes =
        usize::try_from(mapping.end.checked_sub(mapping.start)?.min(MAX_VDSO_BYTES)).ok()?;
    let mut content = vec![0; bytes];
    let memory = File::open(format!("/proc/{}/mem", mapping.pid)).ok()?;
    memory.read_exact_at(&mut content, mapping.start).ok()?;
    // SAFETY: the name is a C string that outlives the call.
    let descriptor = unsafe { libc::memfd_create(c"vdso".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: the call returned a new descriptor that we own.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(&content).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::mappings;

    const EXITED: Pid = Pid(u32::MAX - 1);

    /// A mapping of this process with a wrong range, so that it cannot be opened through it.
    fn of_this_program() -> Mapping {
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let is_program = |_, path: &Path| path == program;
        let mapping = mappings(Pid(std::process::id()), is_program).unwrap().remove(0);
        Mapping { end: mapping.end + (4096 << 20), ..mapping }
    }

    #[test]
    fn only_the_mapped_file_is_opened() {
        let mapping = of_this_program();
        let inode = |mapping: &Mapping| open(mapping).map(|file| file.metadata().unwrap().ino());
        let after_exit = |mapping: &Mapping| inode(&Mapping { pid: EXITED, ..mapping.clone() });
        assert_eq!(inode(&mapping), Ok(mapping.inode));
        // The process has exited, but the file still exists.
        assert_eq!(after_exit(&mapping), Ok(mapping.inode));
        let deleted = Mapping { deleted: true, ..mapping.clone() };
        assert_eq!(after_exit(&deleted), Err(UnknownReason::ProcessExited));
        // The path is that of another file now.
        let replaced = Mapping { inode: mapping.inode + 1, ..mapping.clone() };
        assert_eq!(inode(&replaced), Err(UnknownReason::Unreadable));
        assert_eq!(after_exit(&replaced), Err(UnknownReason::ProcessExited));
        // Only regular files are opened.
        let device = Mapping { path: "/dev/zero".into(), ..mapping };
        assert_eq!(inode(&device), Err(UnknownReason::Unreadable));
    }

    #[test]
    fn file_that_cannot_be_opened_is_a_module() {
        let mapping = Mapping { pid: EXITED, path: "/not/there".into(), ..of_this_program() };
        let mut modules = ModuleFinder::default();
        let Some(MappingTarget::Module(id)) = modules.find(&mapping) else {
            panic!("no module");
        };
        assert_eq!(&*modules.registry().path(id), "/not/there");
        assert_eq!(modules.find(&mapping), Some(MappingTarget::Module(id)));
        assert_eq!(
            modules.registry().get(id).unwrap().image.as_ref().err(),
            Some(&UnknownReason::ProcessExited)
        );
        assert_eq!(&*modules.registry().path(ModuleId(7)), "");
    }
}
