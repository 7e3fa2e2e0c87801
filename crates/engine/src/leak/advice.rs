//! What to do about a leak: one table of causes. The first row that matches decides.

use std::sync::Arc;

use crate::headline::components;
use crate::model::{Allocator, Bytes, Frame, MemoryKind, ObjectKind};
use crate::verdict::{CacheTensors, Evidence, Resource};

/// Likely cause of a leak, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Cause, as a word for machines.
    pub cause: &'static str,
    /// What to do.
    pub text: String,
}

/// What a row compares.
struct Facts {
    resource: Resource,
    evidence: Evidence,
    /// Number of lines of the same function that leak.
    lines: usize,
    components: Vec<Arc<str>>,
}

impl Facts {
    fn through(&self, name: &str) -> bool {
        self.components.iter().any(|component| **component == *name)
    }

    const fn object(&self) -> Option<ObjectKind> {
        match self.resource {
            Resource::Objects(kind) => Some(kind),
            Resource::Memory(_) | Resource::Blocks(_) => None,
        }
    }

    const fn memory(&self) -> Option<MemoryKind> {
        match self.resource {
            Resource::Memory(kind) => Some(kind),
            Resource::Objects(_) | Resource::Blocks(_) => None,
        }
    }

    fn is_tensors(&self) -> bool {
        self.resource == Resource::Blocks(Allocator::PyTorch)
    }

    /// Tensors of PyTorch's cache, if this is memory of it and they are known.
    fn cache(&self) -> Option<&CacheTensors> {
        self.evidence.tensors.as_ref()
    }

    /// Whether this is device memory of PyTorch's cache.
    fn is_cache(&self) -> bool {
        let device = self.memory().is_some_and(MemoryKind::takes_device_memory);
        device && (self.cache().is_some() || self.through("PyTorch allocator"))
    }

    fn is_code(&self) -> bool {
        let code = [ObjectKind::Module, ObjectKind::Library, ObjectKind::Linker];
        self.object().is_some_and(|kind| code.contains(&kind))
    }

    fn is_graph(&self) -> bool {
        matches!(self.object(), Some(ObjectKind::Graph | ObjectKind::GraphExec))
    }

    /// Whether less than a quarter of the allocations leak.
    const fn is_minority(&self) -> bool {
        let Evidence { created, freed, live_count, .. } = self.evidence;
        freed >= 32 && live_count < created / 4
    }
}

/// A row: the cause, when it applies, and the advice. Words in braces are replaced by numbers and
/// names of the evidence.
type Row = (&'static str, fn(&Facts) -> bool, &'static str);

/// All causes, the most specific first.
const ROWS: &[Row] = &[
    (
        "python_references",
        |facts| facts.evidence.kept_by.is_some(),
        "Python keeps it alive through {keeper}: remove references that are no longer needed",
    ),
    (
        "failed_capture",
        |facts| {
            facts.cache().is_some_and(|cache| cache.during_capture && cache.failed_captures > 0)
        },
        "{failed} stream captures of this process failed, and a failed capture keeps its memory: fix \
         the call that fails during capture, and call `reset()` on that graph",
    ),
    (
        "graph_pool",
        |facts| facts.cache().is_some_and(|cache| cache.during_capture),
        "this memory belongs to private pools of CUDA graphs, which no other tensor can use: capture \
         once per shape, share one pool (`torch.cuda.graph(g, pool=...)`), and call `reset()` on \
         graphs that are not used any more",
    ),
    (
        "cache_unused",
        |facts| facts.is_cache() && facts.cache().is_some_and(|cache| cache.bounded),
        "this is PyTorch's cache ({cache}), but its tensors peaked at {peak}, and {unused} was never \
         used lately: blocks wait for other streams (`record_stream`), or are fragmented; set \
         PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    (
        "cache_tensors",
        |facts| facts.is_cache() && facts.cache().is_some(),
        "this is PyTorch's cache, and its tensors grow, but no single line explains it: compare the \
         tensor sites of `trace --allocators --by site` over time",
    ),
    (
        "cache",
        Facts::is_cache,
        "this is PyTorch's cache; with --allocators=full, reports name the lines that keep tensors alive",
    ),
    (
        "plan_cache",
        |facts| facts.through("cuFFT") && facts.through("CuPy"),
        "CuPy caches an FFT plan for each shape: bound it with \
         `cupy.fft.config.get_plan_cache().set_size(N)`",
    ),
    (
        "plan_cache",
        |facts| facts.through("cuFFT") && facts.through("PyTorch"),
        "PyTorch caches an FFT plan for each shape: bound it with \
         `torch.backends.cuda.cufft_plan_cache.max_size = N`",
    ),
    (
        "plan_cache",
        |facts| facts.through("cuFFT"),
        "an FFT plan holds it: reuse plans, and call cufftDestroy for each",
    ),
    (
        "communicator",
        |facts| facts.through("NCCL") && facts.through("PyTorch"),
        "NCCL communicators are not destroyed: create process groups once, and call \
         `torch.distributed.destroy_process_group(group)` for each",
    ),
    (
        "communicator",
        |facts| facts.through("NCCL"),
        "NCCL communicators are not destroyed: call ncclCommDestroy for each",
    ),
    (
        "module_cache",
        |facts| facts.is_code() && facts.through("Triton"),
        "Triton compiles and loads a kernel for each new shape or constant, and never unloads it: \
         pad shapes, or name changing arguments in `do_not_specialize`",
    ),
    (
        "module_cache",
        |facts| facts.is_code() && facts.through("JAX"),
        "JAX compiles and loads code for each new shape: pad to fixed shapes, keep one jitted \
         function, or call `jax.clear_caches()`",
    ),
    (
        "module_cache",
        |facts| facts.is_code() && facts.through("CuPy"),
        "CuPy loads a module for each new source: build `RawModule` and `RawKernel` once, outside of \
         the loop",
    ),
    (
        "module_cache",
        |facts| facts.is_code() && facts.through("PyTorch"),
        "PyTorch compiles again for new shapes: TORCH_LOGS=recompiles says why; mark changing sizes \
         as dynamic, or lower `torch._dynamo.config.recompile_limit`",
    ),
    (
        "module_cache",
        Facts::is_code,
        "code is loaded again and again: load it once and keep it, or call {by} for each one",
    ),
    (
        "library_handle",
        |facts| {
            ["cuBLAS", "cuDNN", "cuSOLVER", "cuSPARSE"].iter().any(|name| facts.through(name))
                && !facts.through("PyTorch")
        },
        "a handle of a CUDA library holds it: create one per thread and reuse it, and destroy it \
         (cublasDestroy, cudnnDestroy, …)",
    ),
    (
        "graph_per_step",
        |facts| facts.is_graph() && facts.through("PyTorch"),
        "a CUDA graph is captured again and again: capture once per shape, and call `reset()` on \
         graphs that are not used any more",
    ),
    (
        "graph_per_step",
        Facts::is_graph,
        "call {by} for each one, or update one with cudaGraphExecUpdate; each executable graph uses \
         device memory",
    ),
    (
        "kept_graph",
        |facts| facts.is_tensors() && facts.lines >= 3,
        "several lines of one step are kept together, as by the graph of a loss: keep `loss.item()` \
         or `loss.detach()`, not the loss itself",
    ),
    (
        "exception",
        |facts| facts.is_tensors() && facts.is_minority(),
        "most are freed, so only some steps keep it: a stored exception keeps all \
         local tensors of its traceback (keep `str(error)`), or an error path stores the result",
    ),
    (
        "kept_tensor",
        Facts::is_tensors,
        "something keeps the result of this line alive (a list, dict, closure, attribute or stored \
         exception): store `.item()` or a `.detach()`ed copy instead",
    ),
    (
        "freed_at_exit",
        |facts| facts.evidence.freed_at_end > 0 && !facts.evidence.is_freeing,
        "it is freed, but only at exit: free it as soon as it is not needed any more",
    ),
    (
        "freed_late",
        |facts| facts.memory().is_some() && facts.evidence.freed == 0 && facts.evidence.is_freeing,
        "it is being freed, but none was while it grew: free it as soon as it is not needed any more",
    ),
    (
        "never_freed",
        |facts| facts.memory().is_some() && facts.evidence.freed == 0,
        "never freed: call {by} when done",
    ),
    (
        "error_path",
        |facts| facts.memory().is_some(),
        "some are freed: look for an error path or early return that skips {by}",
    ),
    (
        "never_destroyed",
        |_| true,
        "call {by} for each one, or create one and reuse it; each uses host and often device memory",
    ),
];

/// Returns the likely cause of a leak and what to do: of its sites, the one with the most specific
/// cause decides. `lines`: number of lines of the same function that leak.
pub fn advise<'a>(
    sites: impl IntoIterator<Item = (Resource, &'a Evidence, &'a [Frame])>,
    lines: usize,
) -> Advice {
    let facts = sites.into_iter().map(|(resource, evidence, frames)| {
        let components = components(frames);
        Facts { resource, evidence: evidence.clone(), lines, components }
    });
    let causes = facts.filter_map(|facts| {
        let row = ROWS.iter().position(|(_, applies, _)| applies(&facts))?;
        Some((row, facts))
    });
    let first = causes.min_by_key(|(row, _)| *row);
    let found = first.and_then(|(row, facts)| Some((ROWS.get(row)?, facts)));
    match found {
        Some(((cause, _, text), facts)) => Advice { cause, text: fill(text, &facts) },
        None => Advice { cause: "unknown", text: String::new() },
    }
}

fn fill(text: &str, facts: &Facts) -> String {
    let cache = facts.cache();
    let bytes = |of: fn(&CacheTensors) -> u64| cache.map_or(0, of);
    let by = match facts.resource {
        Resource::Objects(kind) => destroyed_by(kind),
        Resource::Memory(kind) => freed_by(kind),
        Resource::Blocks(_) => "del",
    };
    let values = [
        ("{by}", by.to_owned()),
        ("{cache}", Bytes(bytes(|cache| cache.cache)).to_string()),
        ("{peak}", Bytes(bytes(|cache| cache.peak)).to_string()),
        ("{unused}", Bytes(bytes(|cache| cache.unused)).to_string()),
        ("{failed}", bytes(|cache| cache.failed_captures).to_string()),
        // The last one, because it is text of the program.
        ("{keeper}", facts.evidence.kept_by.as_deref().unwrap_or_default().to_owned()),
    ];
    values.into_iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, &value))
}

const fn freed_by(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Async | MemoryKind::HostAsync => "cudaFreeAsync",
        MemoryKind::Pinned => "cudaFreeHost",
        MemoryKind::Registered => "cudaHostUnregister",
        MemoryKind::Array => "cudaFreeArray",
        MemoryKind::Physical | MemoryKind::HostPhysical => "cuMemUnmap and cuMemRelease",
        MemoryKind::Graph => "a free node, or cudaFree after the graph",
        _ => "cudaFree",
    }
}

const fn destroyed_by(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Stream => "cudaStreamDestroy",
        ObjectKind::Event => "cudaEventDestroy",
        ObjectKind::Graph => "cudaGraphDestroy",
        ObjectKind::GraphExec => "cudaGraphExecDestroy",
        ObjectKind::Module => "cuModuleUnload",
        ObjectKind::Library => "cuLibraryUnload",
        ObjectKind::Context => "cuCtxDestroy",
        ObjectKind::GreenContext => "cuGreenCtxDestroy",
        ObjectKind::Texture => "cudaDestroyTextureObject",
        ObjectKind::Surface => "cudaDestroySurfaceObject",
        ObjectKind::Pool => "cudaMemPoolDestroy",
        ObjectKind::Linker => "cuLinkDestroy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TORCH: Resource = Resource::Blocks(Allocator::PyTorch);

    fn frame(function: &str, module: &str) -> Frame {
        Frame { function: function.into(), module: Some(module.into()), ..Frame::default() }
    }

    fn cause(resource: Resource, evidence: &Evidence, modules: &[&str], lines: usize) -> String {
        let frames: Vec<_> = modules.iter().map(|module| frame("f", module)).collect();
        let advice = advise([(resource, evidence, &*frames)], lines);
        assert!(!advice.text.contains(['{', '}']), "{}", advice.text);
        advice.cause.to_owned()
    }

    #[test]
    fn every_cause_has_a_case() {
        let memory = Resource::Memory(MemoryKind::Device);
        let module = Resource::Objects(ObjectKind::Module);
        let none = Evidence::default();
        let some = Evidence { created: 100, freed: 60, live_count: 40, ..none.clone() };
        let few = Evidence { created: 100, freed: 90, live_count: 10, ..none.clone() };
        let freed = Evidence { freed_at_end: 5, ..none.clone() };
        let late = Evidence { is_freeing: true, ..freed.clone() };
        let cache = |tensors| Evidence { tensors: Some(tensors), ..none.clone() };
        let tensors = CacheTensors {
            live: 1,
            peak: 2,
            cache: 9,
            growth_per_hour: 0,
            cache_growth_per_hour: 1,
            bounded: true,
            unused: 3,
            failed_captures: 0,
            during_capture: false,
        };
        let captured = CacheTensors { during_capture: true, ..tensors };
        let torch = "libtorch_cuda.so";
        let kept = Evidence { kept_by: Some("__main__.history".into()), ..none.clone() };
        let cases: &[(&str, Resource, Evidence, &[&str], usize)] = &[
            ("python_references", TORCH, kept, &[], 1),
            (
                "failed_capture",
                memory,
                cache(CacheTensors { failed_captures: 4, ..captured }),
                &[],
                1,
            ),
            ("graph_pool", memory, cache(captured), &[], 1),
            ("cache_unused", memory, cache(tensors), &[], 1),
            ("cache_tensors", memory, cache(CacheTensors { bounded: false, ..tensors }), &[], 1),
            ("cache", memory, none.clone(), &["libc10_cuda.so"], 1),
            ("plan_cache", memory, none.clone(), &["libcufft.so.11"], 1),
            ("communicator", memory, none.clone(), &["libnccl.so.2"], 1),
            ("module_cache", module, none.clone(), &["libtriton.so"], 1),
            ("library_handle", memory, none.clone(), &["libcudnn.so.9"], 1),
            ("graph_per_step", Resource::Objects(ObjectKind::GraphExec), none.clone(), &[torch], 1),
            ("kept_graph", TORCH, none.clone(), &[torch], 3),
            ("exception", TORCH, few, &[torch], 1),
            ("kept_tensor", TORCH, some.clone(), &[torch], 1),
            ("freed_at_exit", memory, freed, &[], 1),
            ("freed_late", memory, late, &[], 1),
            ("never_freed", memory, none.clone(), &[], 1),
            ("error_path", memory, some, &[], 1),
            ("never_destroyed", Resource::Objects(ObjectKind::Stream), none, &[], 1),
        ];
        for (want, resource, evidence, modules, lines) in cases {
            assert_eq!(cause(*resource, evidence, modules, *lines), *want);
        }
        let covered = |name: &str| cases.iter().any(|(cause, ..)| *cause == name);
        assert!(ROWS.iter().all(|(cause, ..)| covered(cause)));
    }

    #[test]
    fn advice_for_modules_names_the_setting_of_the_framework() {
        let text = |module: &str| {
            let frames = [frame("f", module)];
            let module = Resource::Objects(ObjectKind::Module);
            advise([(module, &Evidence::default(), &frames[..])], 1).text
        };
        assert!(text("libtriton.so").contains("do_not_specialize"));
        assert!(text("xla_cuda_plugin.so").contains("jax.clear_caches()"));
        assert!(text("libtorch_cuda.so").contains("recompile_limit"));
        assert!(text("app").contains("cuModuleUnload"));
    }

    #[test]
    fn most_specific_cause_of_several_sites_decides() {
        let (none, fft) = (Evidence::default(), [frame("f", "libcufft.so.11")]);
        let plain = (Resource::Memory(MemoryKind::Device), &none, &[][..]);
        let plan = (Resource::Memory(MemoryKind::Device), &none, &fft[..]);
        assert_eq!(advise([plain], 1).cause, "never_freed");
        assert_eq!(advise([plain, plan], 1).cause, "plan_cache");
    }
}
