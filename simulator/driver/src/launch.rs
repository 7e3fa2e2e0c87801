//! Modules, libraries, their kernels, and launches of them.
//!
//! Nothing is compiled and nothing runs: a module has every kernel that it is asked for.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_uint, c_void};

use crate::abi::{Code, Handle, In, InStr, Out, Outcome, plain};
use crate::entry::exports;
use crate::handle::Slab;
use crate::state::{self, State};

exports! {
    call cuModuleLoad(module: Out<Handle>, path: InStr) = load_file;
    call cuModuleLoadData(module: Out<Handle>, image: *const c_void) = load;
    call cuModuleLoadDataEx(module: Out<Handle>, image: *const c_void, count: c_uint,
        options: *const c_void, values: *const c_void) = load_with_options;
    call cuModuleLoadFatBinary(module: Out<Handle>, image: *const c_void) = load;
    call cuModuleUnload(module: Handle) = unload;
    call cuModuleGetFunction(function: Out<Handle>, module: Handle, name: InStr) = get_function;
    call cuLibraryLoadData(library: Out<Handle>, code: *const c_void, jit: *const c_void,
        jit_values: *const c_void, jit_count: c_uint, options: *const c_void,
        values: *const c_void, count: c_uint) = load_library;
    call cuLibraryUnload(library: Handle) = unload;
    call cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: InStr) = get_function;
    call cuKernelGetFunction(function: Out<Handle>, kernel: Handle) = kernel_function;
    call cuFuncGetName(name: Out<*const c_char>, function: Handle) = function_name;
    call cuKernelGetName(name: Out<*const c_char>, kernel: Handle) = function_name;
    call cuFuncGetModule(module: Out<Handle>, function: Handle) = function_module;
    call cuLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint,
        by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, params: *const c_void,
        extra: *const c_void) = launch;
    call cuLaunchKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint,
        by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, params: *const c_void,
        extra: *const c_void) = launch;
    call cuLaunchCooperativeKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint,
        bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        params: *const c_void) = launch_cooperative;
    call cuLaunchCooperativeKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint,
        bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        params: *const c_void) = launch_cooperative;
    call cuLaunchKernelEx(config: In<Config>, function: Handle, params: *const c_void,
        extra: *const c_void) = launch_ex;
    call cuLaunchKernelEx_ptsz(config: In<Config>, function: Handle, params: *const c_void,
        extra: *const c_void) = launch_ex;
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: u64,
    count: u32,
}
plain!(Config);

/// A module, or a library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module;

/// A kernel of a module.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    module: u32,
    name: CString,
    launches: u64,
}

/// All modules and kernels, and how often each kernel was launched.
pub(crate) struct Modules {
    modules: Slab<Module>,
    kernels: Slab<Kernel>,
    /// Launches of kernels whose modules were unloaded.
    before: BTreeMap<CString, u64>,
}

impl Modules {
    pub(crate) const fn new() -> Self {
        Self { modules: Slab::new(12), kernels: Slab::new(13), before: BTreeMap::new() }
    }

    /// How often each kernel was launched.
    pub(crate) fn launches(&self) -> BTreeMap<CString, u64> {
        let mut launches = self.before.clone();
        for (_, kernel) in self.kernels.iter().filter(|(_, kernel)| kernel.launches > 0) {
            *launches.entry(kernel.name.clone()).or_default() += kernel.launches;
        }
        launches
    }

    fn kernel(&self, handle: Handle) -> Result<&Kernel, Code> {
        let key = self.kernels.find(handle).ok_or(Code::InvalidHandle)?;
        self.kernels.get(key.index).ok_or(Code::InvalidHandle)
    }
}

fn open(state: &mut State, module: Out<Handle>) -> Outcome {
    let key = state.modules.modules.insert(Module);
    module.set(state.modules.modules.handle(key.index))
}

fn load(module: Out<Handle>, image: *const c_void) -> Outcome {
    module.check()?;
    let mut state = state::running()?;
    state.current()?;
    if image.is_null() {
        return Err(Code::InvalidValue);
    }
    open(&mut state, module)
}

fn load_file(module: Out<Handle>, path: InStr) -> Outcome {
    module.check()?;
    let mut state = state::running()?;
    state.current()?;
    if !std::path::Path::new(path.get()?).exists() {
        return Err(Code::FileNotFound);
    }
    open(&mut state, module)
}

fn load_with_options(
    module: Out<Handle>,
    image: *const c_void,
    _count: c_uint,
    _options: *const c_void,
    _values: *const c_void,
) -> Outcome {
    load(module, image)
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn load_library(
    library: Out<Handle>,
    code: *const c_void,
    _jit: *const c_void,
    _jit_values: *const c_void,
    _jit_count: c_uint,
    _options: *const c_void,
    _values: *const c_void,
    _count: c_uint,
) -> Outcome {
    library.check()?;
    // A library belongs to no context.
    let mut state = state::running()?;
    if code.is_null() {
        return Err(Code::InvalidValue);
    }
    open(&mut state, library)
}

fn unload(module: Handle) -> Outcome {
    let mut state = state::running()?;
    let key = state.modules.modules.find(module).ok_or(Code::InvalidHandle)?;
    state.modules.modules.remove(key.index);
    let kernels = state.modules.kernels.iter();
    let of_module = kernels.filter(|(_, kernel)| kernel.module == key.index);
    let gone: Vec<u32> = of_module.map(|(index, _)| index).collect();
    for index in gone {
        let Some(kernel) = state.modules.kernels.remove(index) else { continue };
        if kernel.launches > 0 {
            *state.modules.before.entry(kernel.name).or_default() += kernel.launches;
        }
    }
    Ok(())
}

fn get_function(function: Out<Handle>, module: Handle, name: InStr) -> Outcome {
    function.check()?;
    let name = CString::new(name.get()?).map_err(|_| Code::InvalidValue)?;
    let mut state = state::running()?;
    let key = state.modules.modules.find(module).ok_or(Code::InvalidHandle)?;
    if name.is_empty() {
        return Err(Code::NotFound);
    }
    let of_module = |kernel: &Kernel| kernel.module == key.index && kernel.name == name;
    let known = state.modules.kernels.iter().find(|(_, kernel)| of_module(kernel));
    let index = match known.map(|(index, _)| index) {
        Some(index) => index,
        None => {
            let kernel = Kernel { module: key.index, name, launches: 0 };
            state.modules.kernels.insert(kernel).index
        }
    };
    function.set(state.modules.kernels.handle(index))
}

/// A kernel may stand for its function.
fn kernel_function(function: Out<Handle>, kernel: Handle) -> Outcome {
    state::running()?.modules.kernel(kernel)?;
    function.set(kernel)
}

fn function_name(name: Out<*const c_char>, function: Handle) -> Outcome {
    // The text stays where it is until the module is unloaded.
    name.set(state::running()?.modules.kernel(function)?.name.as_ptr())
}

fn function_module(module: Out<Handle>, function: Handle) -> Outcome {
    let state = state::running()?;
    let index = state.modules.kernel(function)?.module;
    module.set(state.modules.modules.handle(index))
}

fn count_launch(function: Handle, stream: Handle, sizes: [c_uint; 6]) -> Outcome {
    let mut state = state::running()?;
    state.stream(stream)?;
    if sizes.contains(&0) {
        return Err(Code::InvalidValue);
    }
    let kernels = &mut state.modules.kernels;
    let key = kernels.find(function).ok_or(Code::InvalidHandle)?;
    kernels.get_mut(key.index).ok_or(Code::InvalidHandle)?.launches += 1;
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn launch(
    function: Handle,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    _shared: c_uint,
    stream: Handle,
    _params: *const c_void,
    _extra: *const c_void,
) -> Outcome {
    count_launch(function, stream, [gx, gy, gz, bx, by, bz])
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn launch_cooperative(
    function: Handle,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    _shared: c_uint,
    stream: Handle,
    _params: *const c_void,
) -> Outcome {
    count_launch(function, stream, [gx, gy, gz, bx, by, bz])
}

fn launch_ex(
    config: In<Config>,
    function: Handle,
    _params: *const c_void,
    _extra: *const c_void,
) -> Outcome {
    let Config { grid, block, stream, .. } = config.get()?;
    let [gx, gy, gz] = grid;
    let [bx, by, bz] = block;
    count_launch(function, stream, [gx, gy, gz, bx, by, bz])
}
