//! The files that code is in, each once, whoever maps it.

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use engine::ids::Pid;
use engine::stack::Unknown;
use hashbrown::HashMap;

use super::image::{Image, NoImage, open_regular};
use super::maps::{Mapping, Sort};

/// Files that are kept. A process may have 65,530 mappings of its own, and each takes one.
const MOST: usize = 1 << 14;

/// The largest vdso that is read; they are of some pages.
const MOST_VDSO: u64 = 1 << 20;

/// A file with code in it. Ids count from 0 and stay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ModuleId(pub(crate) u32);

/// What is known of a module.
pub(super) struct Module {
    /// As the first process that was seen with it sees it. Hostile text.
    pub(super) path: Arc<str>,
    /// The file, or why it is not there.
    pub(super) image: Result<Image, Unknown>,
}

/// All modules, for whoever has an id. Shared between threads.
#[derive(Clone, Default)]
pub(crate) struct Registry(Arc<RwLock<Vec<Arc<Module>>>>);

impl Registry {
    /// The path of a module as a process sees it, without the mark of a deleted file; empty for an
    /// id that was never given. Hostile text.
    pub(crate) fn path(&self, id: ModuleId) -> Arc<str> {
        self.get(id).map_or_else(|| Arc::from(""), |module| Arc::clone(&module.path))
    }

    pub(super) fn get(&self, id: ModuleId) -> Option<Arc<Module>> {
        let modules = self.0.read().unwrap_or_else(PoisonError::into_inner);
        modules.get(id.0 as usize).cloned()
    }

    fn push(&self, module: Arc<Module>) -> Option<ModuleId> {
        let mut modules = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let id = u32::try_from(modules.len()).ok().filter(|_| modules.len() < MOST)?;
        modules.push(module);
        Some(ModuleId(id))
    }
}

/// A file as the file system knows it. While it is mapped here its inode is not given to another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FileKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// A file that cannot be opened, as `/proc` tells of it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ToldKey {
    device: (u32, u32),
    inode: u64,
    path: PathBuf,
}

/// What a mapping turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Module(ModuleId),
    /// A file, but no ELF file: memory that a program fills with code.
    NoModule,
}

/// Finds the module of a mapping.
#[derive(Default)]
pub(super) struct Modules {
    registry: Registry,
    by_file: HashMap<FileKey, Found>,
    by_build: HashMap<Arc<[u8]>, Vec<ModuleId>>,
    unopened: HashMap<ToldKey, ModuleId>,
}

impl Modules {
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The module of a mapping; `None` where no more are kept.
    pub(super) fn find(&mut self, pid: Pid, mapping: &Mapping) -> Option<Found> {
        let file = match mapping.sort {
            Sort::File => open(pid, mapping),
            Sort::Vdso => vdso(pid, mapping).ok_or_else(|| why(pid)),
            Sort::Probes | Sort::Anonymous => return Some(Found::NoModule),
        };
        let file = match file {
            Ok(file) => file,
            Err(why) => return self.without_file(mapping, why),
        };
        let Some(key) = key(&file) else { return self.without_file(mapping, Unknown::Unreadable) };
        if let Some(found) = self.by_file.get(&key) {
            return Some(*found);
        }
        if self.by_file.len() >= 2 * MOST {
            return None;
        }
        let found = match Image::of(file) {
            Ok(image) => Found::Module(self.with_image(mapping, image)?),
            Err(NoImage::NotElf) => Found::NoModule,
            Err(NoImage::Unreadable) => return self.without_file(mapping, Unknown::Unreadable),
        };
        // What is no module yet may be one when it is written to its end.
        if mapping.sort == Sort::File && matches!(found, Found::Module(_)) {
            self.by_file.insert(key, found);
        }
        Some(found)
    }

    fn with_image(&mut self, mapping: &Mapping, image: Image) -> Option<ModuleId> {
        let alike = image.build_id().and_then(|id| self.by_build.get(id)).into_iter().flatten();
        let known = alike.copied().find(|id| {
            let module = self.registry.get(*id);
            module.is_some_and(|known| known.image.as_ref().is_ok_and(|i| i.is_like(&image)))
        });
        if let Some(known) = known {
            return Some(known);
        }
        let build_id = image.build_id().cloned();
        let path = Arc::from(mapping.name());
        let id = self.registry.push(Arc::new(Module { path, image: Ok(image) }))?;
        if let Some(build_id) = build_id {
            self.by_build.entry(build_id).or_default().push(id);
        }
        Some(id)
    }

    /// The path and the place in the file are known all the same.
    fn without_file(&mut self, mapping: &Mapping, why: Unknown) -> Option<Found> {
        let (device, inode) = (mapping.device, mapping.inode);
        let key = ToldKey { device, inode, path: mapping.path.clone() };
        if let Some(id) = self.unopened.get(&key) {
            return Some(Found::Module(*id));
        }
        let module = Module { path: Arc::from(mapping.name()), image: Err(why) };
        let id = self.registry.push(Arc::new(module))?;
        self.unopened.insert(key, id);
        Some(Found::Module(id))
    }
}

fn key(file: &File) -> Option<FileKey> {
    let about = file.metadata().ok()?;
    let modified = (about.mtime(), about.mtime_nsec());
    Some(FileKey { device: about.dev(), inode: about.ino(), size: about.size(), modified })
}

/// Opens the file of a mapping, the surest way first: `map_files` leads to deleted files and into
/// other mount namespaces, `root` into those, the plain path outlives the process.
fn open(pid: Pid, mapping: &Mapping) -> Result<File, Unknown> {
    let range = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Ok(file) = open_regular(Path::new(&range)) {
        return Ok(file);
    }
    let device = libc::makedev(mapping.device.0, mapping.device.1);
    let is_it = |file: &File, any_device: bool| {
        let about = file.metadata();
        about.is_ok_and(|about| {
            about.ino() == mapping.inode && (any_device || about.dev() == device)
        })
    };
    let root = Path::new(&format!("/proc/{pid}/root")).join(mapping.relative());
    if let Some(file) = open_regular(&root).ok().filter(|file| is_it(file, false)) {
        return Ok(file);
    }
    // The number of a deleted file is given to the next one that is made.
    let plain = (!mapping.deleted).then(|| open_regular(&mapping.path).ok()).flatten();
    plain.filter(|file| is_it(file, true)).ok_or_else(|| why(pid))
}

fn why(pid: Pid) -> Unknown {
    let is_there = Path::new(&format!("/proc/{pid}")).exists();
    if is_there { Unknown::Unreadable } else { Unknown::Gone }
}

/// The vdso is in memory only: what a process has of it, as a file of our own.
fn vdso(pid: Pid, mapping: &Mapping) -> Option<File> {
    let bytes = usize::try_from(mapping.end.checked_sub(mapping.start)?.min(MOST_VDSO)).ok()?;
    let mut content = vec![0; bytes];
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(&mut content, mapping.start).ok()?;
    // SAFETY: the name is a C string that lives through the call.
    let descriptor = unsafe { libc::memfd_create(c"vdso".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: the call has just given this descriptor, and nobody else has it.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(&content).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::native::maps;

    /// A mapping of this process whose range is not right, so that `map_files` does not help.
    fn of_this_program() -> Mapping {
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let text = std::fs::read("/proc/self/maps").unwrap();
        let mut mappings = maps::parse(&text).into_iter();
        let mut mapping = mappings.find(|mapping| mapping.path == program).unwrap();
        mapping.end += 4096 << 20;
        mapping
    }

    #[test]
    fn a_path_counts_only_where_it_leads_to_the_mapped_file() {
        let (me, nobody) = (Pid(std::process::id()), Pid(u32::MAX - 1));
        let mapping = of_this_program();
        let inode = |file: Result<File, Unknown>| file.map(|file| file.metadata().unwrap().ino());
        assert_eq!(inode(open(me, &mapping)), Ok(mapping.inode));
        // A process that is gone, and its file is not.
        assert_eq!(inode(open(nobody, &mapping)), Ok(mapping.inode));
        let deleted = Mapping { deleted: true, ..mapping.clone() };
        assert_eq!(inode(open(nobody, &deleted)), Err(Unknown::Gone));
        // Another file has the name now.
        let replaced = Mapping { inode: mapping.inode + 1, ..mapping.clone() };
        assert_eq!(inode(open(me, &replaced)), Err(Unknown::Unreadable));
        assert_eq!(inode(open(nobody, &replaced)), Err(Unknown::Gone));
        // Nothing but regular files is opened.
        let device = Mapping { path: "/dev/zero".into(), ..mapping };
        assert_eq!(inode(open(me, &device)), Err(Unknown::Unreadable));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_a_module_all_the_same() {
        let mapping = Mapping { path: "/not/there".into(), ..of_this_program() };
        let mut modules = Modules::default();
        let Some(Found::Module(id)) = modules.find(Pid(u32::MAX - 1), &mapping) else {
            panic!("no module");
        };
        assert_eq!(&*modules.registry().path(id), "/not/there");
        assert_eq!(modules.find(Pid(u32::MAX - 1), &mapping), Some(Found::Module(id)));
        assert_eq!(modules.registry().get(id).unwrap().image.as_ref().err(), Some(&Unknown::Gone));
        assert_eq!(&*modules.registry().path(ModuleId(7)), "");
    }
}
