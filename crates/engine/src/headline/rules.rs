//! Which code a frame belongs to: one table of libraries, packages and functions.

use std::sync::Arc;

use crate::model::{Frame, Language};

/// Part of the software that a frame belongs to, from the driver up to the program. The headline of
/// a stack is a frame of the last layer that the stack has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Layer {
    /// Driver, CUDA runtime, C library, interpreter.
    System,
    /// Allocator of a framework.
    Allocator,
    /// Framework or GPU library.
    Framework,
    /// Code without symbols outside of known libraries.
    Unnamed,
    /// Installed Python package or system library.
    Package,
    /// Code of the program.
    #[default]
    Program,
}

/// What a rule compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Start of the file name of the library.
    Library,
    /// Python package: the component after `site-packages` or `dist-packages`.
    Package,
    /// Part of the path of the source file or of the library.
    Path,
    /// Start of the path of the library.
    Directory,
    /// Start of the name of a native function.
    Function,
    /// The same, followed by an upper-case letter: `cuMemAlloc_v2`, but not `curve`. Bindings to
    /// other languages have functions of the same names: `Driver::cuMemAlloc_v2`.
    Prefix,
    /// Name of a native function.
    Name,
}

/// A rule: what it compares, the text, the layer, and the name of the component; without a name,
/// that of the package or library.
type Rule = (Part, &'static str, Layer, &'static str);

/// All rules; the first that matches decides. Frames that no rule matches belong to the program.
#[rustfmt::skip]
const RULES: &[Rule] = {
    use Layer::{Allocator, Framework, Package, System};
    &[
        (Part::Library, "libcuda.so", System, "the driver"),
        (Part::Library, "libcudart", System, "the CUDA runtime"),
        (Part::Library, "libcupti", System, "CUPTI"),
        (Part::Library, "libnvidia-", System, "the driver"),
        (Part::Library, "libpython", System, "Python"),
        (Part::Library, "python", System, "Python"),
        (Part::Library, "libc.so", System, "libc"),
        (Part::Library, "libc-2", System, "libc"),
        (Part::Library, "libpthread", System, "libc"),
        (Part::Library, "ld-linux", System, "libc"),
        (Part::Library, "libstdc++", System, "libstdc++"),
        (Part::Library, "libgcc_s", System, "libgcc"),
        (Part::Library, "libffi", System, "libffi"),
        (Part::Library, "libc10", Allocator, "PyTorch"),
        (Part::Library, "libtorch", Framework, "PyTorch"),
        (Part::Library, "libtriton", Framework, "Triton"),
        (Part::Library, "libcublas", Framework, "cuBLAS"),
        (Part::Library, "libcudnn", Framework, "cuDNN"),
        (Part::Library, "libcufft", Framework, "cuFFT"),
        (Part::Library, "libcurand", Framework, "cuRAND"),
        (Part::Library, "libcusolver", Framework, "cuSOLVER"),
        (Part::Library, "libcusparse", Framework, "cuSPARSE"),
        (Part::Library, "libcutensor", Framework, "cuTENSOR"),
        (Part::Library, "libnccl", Framework, "NCCL"),
        (Part::Library, "libnvshmem", Framework, "NVSHMEM"),
        (Part::Library, "libnvinfer", Framework, "TensorRT"),
        (Part::Library, "libnvrtc", Framework, "NVRTC"),
        (Part::Library, "libonnxruntime", Framework, "ONNX Runtime"),
        (Part::Library, "libtensorflow", Framework, "TensorFlow"),
        (Part::Library, "xla_", Framework, "JAX"),
        (Part::Library, "librmm", Allocator, "RMM"),
        (Part::Library, "libmpi", Framework, "MPI"),
        (Part::Library, "libucp", Framework, "UCX"),
        (Part::Library, "libucm", Framework, "UCX"),
        (Part::Library, "libuct", Framework, "UCX"),
        (Part::Library, "libcufile", Framework, "cuFile"),
        (Part::Library, "libnvjpeg", Framework, "nvJPEG"),
        (Part::Library, "libnpp", Framework, "NPP"),
        (Part::Path, "/.triton/cache/", Framework, "Triton"),
        (Part::Path, "/torchinductor_", Framework, "PyTorch"),
        (Part::Path, "/.cache/flashinfer/", Framework, "FlashInfer"),

        (Part::Package, "torch", Framework, "PyTorch"),
        (Part::Package, "functorch", Framework, "PyTorch"),
        (Part::Package, "jax", Framework, "JAX"),
        (Part::Package, "jaxlib", Framework, "JAX"),
        (Part::Package, "jax_plugins", Framework, "JAX"),
        (Part::Package, "cupy", Framework, "CuPy"),
        (Part::Package, "cupyx", Framework, "CuPy"),
        (Part::Package, "cupy_backends", Framework, "CuPy"),
        (Part::Package, "triton", Framework, "Triton"),
        (Part::Package, "tensorflow", Framework, "TensorFlow"),
        (Part::Package, "onnxruntime", Framework, "ONNX Runtime"),
        (Part::Package, "numba", Framework, "Numba"),
        (Part::Package, "numba_cuda", Framework, "Numba"),
        (Part::Package, "pycuda", Framework, "PyCUDA"),
        (Part::Package, "cuda", Framework, "CUDA Python"),
        (Part::Package, "nvidia", Framework, "CUDA libraries"),
        (Part::Package, "rmm", Allocator, "RMM"),
        (Part::Package, "numpy", Framework, "NumPy"),
        (Part::Package, "flashinfer", Framework, "FlashInfer"),
        (Part::Package, "flash_attn", Framework, "FlashAttention"),
        (Part::Package, "deep_gemm", Framework, "DeepGEMM"),
        (Part::Package, "transformer_engine", Framework, "Transformer Engine"),
        (Part::Package, "", Package, ""),

        (Part::Path, "<frozen ", System, "Python"),
        (Part::Path, "/lib/python3", System, "Python"),
        (Part::Path, "cupy/cupy/cuda/memory", Allocator, "CuPy"),
        (Part::Path, "cupy/cupy/", Framework, "CuPy"),
        (Part::Path, "cupy/cupy_backends/", Framework, "CuPy"),
        (Part::Path, "/cuda_runtime.h", System, "the CUDA runtime"),
        (Part::Path, "/rustc/", System, "the standard library"),
        (Part::Path, "/include/c++/", System, "the standard library"),

        (Part::Function, "c10::", Allocator, "PyTorch"),
        (Part::Function, "at::", Framework, "PyTorch"),
        (Part::Function, "torch::", Framework, "PyTorch"),
        (Part::Function, "tsl::BFCAllocator", Allocator, "JAX"),
        (Part::Function, "tsl::", Framework, "JAX"),
        (Part::Function, "xla::", Framework, "JAX"),
        (Part::Function, "stream_executor::", Framework, "JAX"),
        (Part::Function, "tensorflow::", Framework, "TensorFlow"),
        (Part::Function, "onnxruntime::", Framework, "ONNX Runtime"),
        (Part::Function, "rmm::", Allocator, "RMM"),
        (Part::Function, "thrust::", Framework, "Thrust"),
        (Part::Function, "cub::", Framework, "CUB"),
        (Part::Function, "__pyx_f_4cupy_4cuda_6memory", Allocator, "CuPy"),
        (Part::Function, "__pyx_", System, "Cython"),
        (Part::Function, "__Pyx_", System, "Cython"),
        (Part::Function, "pybind11::", System, "pybind11"),
        (Part::Function, "_Py", System, "Python"),
        (Part::Function, "Py_", System, "Python"),
        (Part::Prefix, "Py", System, "Python"),
        (Part::Prefix, "cuda", System, "the CUDA runtime"),
        (Part::Prefix, "cublas", Framework, "cuBLAS"),
        (Part::Prefix, "cudnn", Framework, "cuDNN"),
        (Part::Prefix, "cufft", Framework, "cuFFT"),
        (Part::Prefix, "nccl", Framework, "NCCL"),
        (Part::Prefix, "cu", System, "the driver"),
        (Part::Function, "libcudart_static_", System, "the CUDA runtime"),
        (Part::Function, "__libc_", System, "libc"),
        (Part::Function, "_dl_", System, "libc"),
        (Part::Function, "__pthread", System, "libc"),
        (Part::Function, "pthread_", System, "libc"),
        (Part::Function, "std::", System, "the standard library"),
        (Part::Function, "core::ops::function::", System, "the standard library"),
        (Part::Name, "_start", System, "libc"),
        (Part::Name, "start_thread", System, "libc"),
        (Part::Name, "clone", System, "libc"),
        (Part::Name, "__clone", System, "libc"),
        (Part::Name, "__clone3", System, "libc"),

        (Part::Directory, "/usr/lib", Package, ""),
        (Part::Directory, "/usr/local/lib", Package, ""),
        (Part::Directory, "/usr/local/cuda", Package, ""),
        (Part::Directory, "/lib", Package, ""),
    ]
};

/// Layer and component of a frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct FrameClass {
    pub(super) layer: Layer,
    /// Name of the component, such as `PyTorch`; empty for the program.
    pub(super) component: Arc<str>,
    /// Library that memory allocated by this frame belongs to; `None` for code that allocates on
    /// behalf of its caller, such as the CUDA runtime.
    pub(super) library: Option<Arc<str>>,
}

/// Library of memory that the program itself allocates.
pub const PROGRAM_LIBRARY: &str = "program";

/// Library of memory whose call stack is unknown, or has no frame outside the system.
pub const UNKNOWN_LIBRARY: &str = "unknown";

impl FrameClass {
    fn new(layer: Layer, component: &str) -> Self {
        Self { layer, component: component.into(), library: None }
    }

    /// Returns the class of a frame.
    pub(super) fn of(frame: &Frame) -> Self {
        let class = Self::by_rule(frame);
        let library = class.library_of(frame);
        Self { library, ..class }
    }

    /// Returns the library that owns what this frame allocates.
    fn library_of(&self, frame: &Frame) -> Option<Arc<str>> {
        // A library of the program that is in no package has the name of its file.
        let own = frame.module.as_deref().filter(|module| base(module).contains(".so"));
        match self.layer {
            _ if frame.language == Language::Synthetic => None,
            Layer::System => None,
            Layer::Allocator => Some(format!("{} allocator", self.component).into()),
            Layer::Framework | Layer::Package if !self.component.is_empty() => {
                Some(self.component.clone())
            }
            _ => Some(own.map_or(PROGRAM_LIBRARY, library_name).into()),
        }
    }

    fn by_rule(frame: &Frame) -> Self {
        if frame.language == Language::Synthetic {
            return Self::default();
        }
        let parts = FrameParts::of(frame);
        if let Some(&(part, _, layer, name)) = RULES.iter().find(|rule| parts.match_rule(rule)) {
            let own = match part {
                Part::Package => parts.package,
                _ => frame.module.as_deref().map(library_name),
            };
            let name = if name.is_empty() { own.unwrap_or_default() } else { name };
            return Self::new(layer, name);
        }
        match (&*frame.function, &frame.module) {
            ("", Some(module)) => Self::new(Layer::Unnamed, library_name(module)),
            ("", None) => Self::new(Layer::System, ""),
            _ => Self::default(),
        }
    }
}

/// What rules compare of a frame.
struct FrameParts<'a> {
    file: Option<&'a str>,
    module: Option<&'a str>,
    library: Option<&'a str>,
    package: Option<&'a str>,
    /// Name of a native function, and its own name without those around it.
    name: Option<(&'a str, &'a str)>,
}

impl<'a> FrameParts<'a> {
    fn of(frame: &'a Frame) -> Self {
        let module = frame.module.as_deref();
        let name = (frame.language == Language::Native).then(|| plain_name(&frame.function));
        Self {
            file: frame.file.as_deref(),
            module,
            library: module.map(base),
            package: package(frame),
            name: name.map(|name| (name, last_component(name))),
        }
    }

    fn match_rule(&self, &(part, text, ..): &Rule) -> bool {
        let (name, own) = self.name.unzip();
        match part {
            Part::Library => self.library.is_some_and(|library| library.starts_with(text)),
            Part::Package => self.package.is_some_and(|name| text.is_empty() || name == text),
            Part::Path => {
                [self.file, self.module].into_iter().flatten().any(|it| it.contains(text))
            }
            Part::Directory => self.module.is_some_and(|path| path.starts_with(text)),
            Part::Function => name.is_some_and(|name| name.starts_with(text)),
            Part::Prefix => own
                .and_then(|own| own.strip_prefix(text))
                .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase())),
            Part::Name => name == Some(text),
        }
    }
}

/// Returns the installed Python package that a frame belongs to.
fn package(frame: &Frame) -> Option<&str> {
    let inside = |path| {
        let (_, rest) = ["/site-packages/", "/dist-packages/"]
            .into_iter()
            .find_map(|part| str::split_once(path, part))?;
        let name = rest.split('/').next()?;
        Some(name.split('.').next().unwrap_or(name))
    };
    [&frame.file, &frame.module].into_iter().flatten().find_map(|path| inside(path))
}

/// Returns the last component of a path.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns `libfoo` for `/usr/lib/libfoo.so.3`.
pub(super) fn library_name(path: &str) -> &str {
    let name = base(path);
    name.split(".so").next().unwrap_or(name)
}

/// Returns a native function without its arguments, and without the return type that demangled
/// templates have before the name.
pub(super) fn plain_name(function: &str) -> &str {
    let (mut start, mut depth) = (0, 0_usize);
    for (index, one) in function.char_indices() {
        let rest = function.get(index..).unwrap_or_default();
        match one {
            '(' if depth == 0 && !rest.starts_with("(anonymous namespace)") => {
                return function.get(start..index).unwrap_or(function);
            }
            '<' | '(' => depth += 1,
            '>' | ')' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => start = index + 1,
            _ => {}
        }
    }
    function.get(start..).filter(|name| !name.is_empty()).unwrap_or(function)
}

/// Returns a function's own name, without namespace, class and template arguments.
fn last_component(plain: &str) -> &str {
    let own = plain.split('<').next().filter(|name| !name.is_empty()).unwrap_or(plain);
    own.rsplit("::").next().unwrap_or(own)
}

/// Words in the names of functions that only allocate, besides the verb.
const ALLOCATOR_WORDS: [&str; 14] = [
    "gpu", "cuda", "cu", "device", "dev", "host", "pinned", "mem", "memory", "checked", "safe",
    "try", "raw", "async",
];

/// Whether the name says no more than that the function allocates: `gpu_malloc`, `Driver::alloc`.
pub(super) fn is_allocator_name(function: &str) -> bool {
    let name = plain_name(function);
    let last = name.rsplit([':', '.']).next().unwrap_or(name);
    let mut words = String::new();
    for c in last.chars() {
        if c.is_uppercase() {
            words.push('_');
        }
        words.extend(c.to_lowercase());
    }
    let own = words.split('_').filter(|word| !word.is_empty() && !ALLOCATOR_WORDS.contains(word));
    own.map(|word| matches!(word, "alloc" | "malloc" | "allocate")).collect::<Vec<_>>() == [true]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_only_say_allocate_are_recognized() {
        for name in ["alloc", "gpu_malloc(unsigned long)", "Driver::alloc", "cudaMallocChecked"] {
            assert!(is_allocator_name(name), "{name}");
        }
        for name in ["", "allocate_kv_cache", "load", "Buffer::new", "allocateBuffers", "gpu_mem"] {
            assert!(!is_allocator_name(name), "{name}");
        }
    }

    fn native(function: &str, module: &str) -> Frame {
        Frame { function: function.into(), module: Some(module.into()), ..Frame::default() }
    }

    fn python(file: &str) -> Frame {
        let (function, file) = ("run".into(), Some(file.into()));
        Frame { function, file, line: 1, language: Language::Python, ..Frame::default() }
    }

    fn class(frame: &Frame) -> (Layer, String) {
        let class = FrameClass::of(frame);
        (class.layer, class.component.to_string())
    }

    #[test]
    fn user_code_is_not_taken_for_a_library() {
        for (function, module) in [
            ("curve", "program"),
            ("customAlloc", "/opt/app/program"),
            ("cuda_wrapper", "app"),
            ("ncclish", "app"),
            ("main", "app"),
        ] {
            assert_eq!(class(&native(function, module)).0, Layer::Program, "{function}");
        }
        for file in ["/srv/train.py", "train.py", "/tmp/ipykernel_17/42.py", "<string>"] {
            assert_eq!(class(&python(file)).0, Layer::Program, "{file}");
        }
    }

    #[test]
    fn return_types_and_arguments_are_not_part_of_a_name() {
        for (function, name) in [
            ("std::vector<a::B> App::load<float>(int, c10::Device)", "App::load<float>"),
            (
                "at::(anonymous namespace)::create_out(long)",
                "at::(anonymous namespace)::create_out",
            ),
            ("cudaError cudaMalloc<float>(float**)", "cudaMalloc<float>"),
            ("<alloc::vec::Vec<T> as app::Grow>::grow", "<alloc::vec::Vec<T> as app::Grow>::grow"),
            ("main.<locals>.work", "main.<locals>.work"),
            (
                "c10::wrap<at::Tensor (long), &at::(anonymous namespace)::mm>::call(int)",
                "c10::wrap<at::Tensor (long), &at::(anonymous namespace)::mm>::call",
            ),
            ("f(g<", "f"),
            ("", ""),
            (" ", " "),
        ] {
            assert_eq!(plain_name(function), name);
        }
        let load = native("std::vector<a::B> App::load<float>(int, c10::Device)", "app");
        assert_eq!(class(&load).0, Layer::Program);
    }

    #[test]
    fn library_code_is_recognized_by_library_package_and_function() {
        let layer = |frame: Frame| class(&frame);
        let of = |layer, name: &str| (layer, name.to_owned());
        assert_eq!(
            layer(native("cudaError cudaMalloc<float>(float**, unsigned long)", "program")),
            of(Layer::System, "the CUDA runtime")
        );
        assert_eq!(
            layer(native("workload::cuda::Driver::cuMemAlloc_v2", "program")),
            of(Layer::System, "the driver")
        );
        assert_eq!(
            layer(native("bool at::cuda::blas::gemm_and_bias<float>(bool, long)", "program")),
            of(Layer::Framework, "PyTorch")
        );
        assert_eq!(layer(native("f", "/x/libc10_cuda.so")), of(Layer::Allocator, "PyTorch"));
        assert_eq!(layer(native("f", "/usr/lib/libz.so.1")), of(Layer::Package, "libz"));
        assert_eq!(
            layer(python("/v/lib/python3.12/site-packages/torch/nn/functional.py")),
            of(Layer::Framework, "PyTorch")
        );
        assert_eq!(
            layer(python("/v/lib/python3.12/site-packages/transformers/trainer.py")),
            of(Layer::Package, "transformers")
        );
        assert_eq!(layer(python("/usr/lib/python3.12/threading.py")), of(Layer::System, "Python"));
        assert_eq!(layer(native("", "/srv/app")), of(Layer::Unnamed, "app"));
        assert_eq!(layer(Frame::default()), of(Layer::System, ""));
    }
}
