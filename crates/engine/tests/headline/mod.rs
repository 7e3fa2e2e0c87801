//! Headlines of real stacks (`stacks.txt`, from an H200: PyTorch 2.11, CuPy 14.2, CUDA 13.0), and
//! of programs with wrappers.

use engine::headline::Headline;
use engine::model::ids::SiteId;
use engine::model::stack::{CallStack, Frame, Language, StackTable};

/// Reads a stack of the fixture: function, `file:line` and module, separated by tabs.
fn real(title: &str) -> Vec<Frame> {
    let text = include_str!("stacks.txt");
    let lines = text.lines().skip_while(|line| *line != format!("# {title}")).skip(1);
    lines.take_while(|line| !line.is_empty()).map(parse).collect()
}

fn parse(line: &str) -> Frame {
    let mut cells = line.split('\t');
    let mut cell = || cells.next().unwrap_or_default();
    let (function, place, module) = (cell(), cell(), cell());
    let (file, line) = match place.rsplit_once(':') {
        Some((file, line)) => (file, line.parse().unwrap_or(0)),
        None => (place, 0),
    };
    let known = |text: &str| (!text.is_empty()).then(|| text.into());
    let language = if file.ends_with(".py") { Language::Python } else { Language::Native };
    let (file, module) = (known(file), known(module));
    Frame { function: function.into(), file, line, module, language, unknown: None }
}

fn native(function: &str, line: u32) -> Frame {
    let (file, module) = (Some("app.cu".into()), Some("/srv/app".into()));
    Frame { function: function.into(), file, line, module, ..Frame::default() }
}

fn python(function: &str, file: &str, line: u32) -> Frame {
    let (function, file) = (function.into(), Some(file.into()));
    Frame { function, file, line, language: Language::Python, ..Frame::default() }
}

fn driver() -> Frame {
    let module = Some("/usr/lib/libcuda.so.1".into());
    Frame { function: "cuMemAlloc_v2".into(), module, ..Frame::default() }
}

fn add(stacks: &mut StackTable, frames: &[Frame]) -> SiteId {
    let ids: Vec<_> = frames.iter().map(|frame| stacks.frame(frame.clone())).collect();
    stacks.site(&ids)
}

/// `function:line via a, b`.
fn text(frames: &[Frame], headline: &Headline) -> String {
    let frame = headline.frame.map(|index| &frames[index]);
    let name = match (&headline.operator, frame) {
        (Some(operator), _) => operator.to_string(),
        (None, Some(frame)) => format!("{}:{}", frame.function, frame.line),
        (None, None) => "-".to_owned(),
    };
    let via: Vec<_> = headline.via.iter().map(|name| &**name).collect();
    if via.is_empty() { name } else { format!("{name} via {}", via.join(", ")) }
}

fn alone(frames: &[Frame]) -> String {
    let stack = CallStack::from(std::sync::Arc::<[Frame]>::from(frames));
    text(&stack, stack.headline())
}

fn all(stacks: &StackTable) -> Vec<String> {
    let sites = (0..stacks.len() as u32).map(|site| stacks.call_stack(SiteId(site)));
    sites.map(|stack| text(&stack, stack.headline())).collect()
}

#[test]
fn program_line_is_named_below_frameworks() {
    assert_eq!(alone(&real("torch_forward")), "leaky_step:7 via PyTorch");
    assert_eq!(alone(&real("torch_parameters")), "<module>:12 via PyTorch");
    assert_eq!(alone(&real("cupy")), "keep:8 via CuPy");
    assert_eq!(alone(&real("cuda_buffer")), "Buffer<float>::Buffer(unsigned long):11");
}

#[test]
fn backward_pass_is_named_by_its_operator() {
    assert_eq!(alone(&real("torch_backward")), "AddmmBackward0 via PyTorch");
    assert_eq!(alone(&real("torch_reduce_grad")), "sum_dim_IntList via PyTorch");
}

#[test]
fn frames_of_lower_layers_are_folded() {
    let frames = real("torch_forward");
    let stack = CallStack::from(std::sync::Arc::<[Frame]>::from(&frames[..]));
    let folded = &stack.headline().folded;
    let shown = frames.iter().zip(folded).filter(|(_, folded)| !**folded);
    let shown: Vec<_> = shown.map(|(frame, _)| (&*frame.function, frame.line)).collect();
    assert_eq!(shown, [("leaky_step", 7), ("<module>", 13)]);
}

#[test]
fn wrapper_of_all_sites_is_folded() {
    let mut stacks = StackTable::default();
    add(&mut stacks, &real("torch_wrapper_1"));
    add(&mut stacks, &real("torch_wrapper_2"));
    let want = ["main.<locals>.work:33 via Account.allocate, PyTorch"];
    assert_eq!(all(&stacks)[..1], want);
}

#[test]
fn nested_wrappers_are_folded_and_functions_with_many_lines_are_not() {
    let mut stacks = StackTable::default();
    for line in [10, 20, 30, 40] {
        let wrapped =
            [driver(), native("gpu_alloc(unsigned long)", 3), native("ns::Buffer::new", 8)];
        let stack = [&wrapped[..], &[native("step", line), native("main", 99)]].concat();
        add(&mut stacks, &stack);
    }
    assert_eq!(all(&stacks)[1], "step:20 via new, gpu_alloc");
}

#[test]
fn function_of_few_sites_is_not_a_wrapper() {
    let mut stacks = StackTable::default();
    for line in [10, 20] {
        add(&mut stacks, &[driver(), native("load", 3), native("main", line)]);
    }
    for line in [30, 40, 50] {
        add(&mut stacks, &[driver(), native("main", line)]);
    }
    assert_eq!(all(&stacks)[..3], ["load:3", "load:3", "main:30"]);
}

#[test]
fn programs_are_counted_separately() {
    let mut stacks = StackTable::default();
    for line in [10, 20] {
        add(&mut stacks, &[driver(), native("lease", 3), native("main", line)]);
    }
    for line in 1..20 {
        add(&mut stacks, &[driver(), python("<module>", "/srv/other.py", line)]);
    }
    assert_eq!(all(&stacks)[0], "main:10 via lease");
}

#[test]
fn declared_wrapper_is_folded_at_once() {
    let mut stacks = StackTable::default();
    stacks.add_wrappers(["lease"]);
    let wrapper = native("float* ns::Pool::lease(unsigned long)", 3);
    add(&mut stacks, &[driver(), wrapper.clone(), native("main", 7)]);
    add(&mut stacks, &[driver(), wrapper]);
    let want = ["main:7 via lease", "float* ns::Pool::lease(unsigned long):3"];
    assert_eq!(all(&stacks), want);
}

#[test]
fn function_that_is_called_alloc_is_folded_at_once() {
    let mut stacks = StackTable::default();
    add(&mut stacks, &[driver(), native("gpu_malloc(unsigned long)", 3), native("main", 7)]);
    add(&mut stacks, &[driver(), native("gpu_malloc(unsigned long)", 3)]);
    assert_eq!(all(&stacks), ["main:7 via gpu_malloc", "gpu_malloc(unsigned long):3"]);
}

#[test]
fn package_line_is_named_if_the_program_has_one_line_only() {
    let package = "/venv/lib/python3.12/site-packages/transformers/models/llama.py";
    let mut stacks = StackTable::default();
    for line in 1..=4 {
        let own = python("<module>", "/srv/run.py", 12);
        add(&mut stacks, &[driver(), python("forward", package, line), own]);
        let want = if line < 4 { "<module>:12 via transformers" } else { "forward:1" };
        assert_eq!(all(&stacks)[0], want);
    }
}

#[test]
fn stack_without_program_names_the_outermost_layer() {
    assert_eq!(alone(&[]), "-");
    assert_eq!(alone(&[driver()]), "cuMemAlloc_v2:0");
    let stripped = Frame { function: "".into(), ..native("", 0) };
    let nccl = Frame { module: Some("/x/libnccl.so.2".into()), ..native("ncclInit", 0) };
    assert_eq!(alone(&[driver(), nccl.clone()]), "ncclInit:0");
    assert_eq!(alone(&[driver(), nccl, stripped]), ":0 via NCCL");
}

#[test]
fn library_is_the_first_one_outside_the_driver_and_the_runtime() {
    let mut stacks = StackTable::default();
    let mut library = |frames: &[Frame]| {
        let site = add(&mut stacks, frames);
        stacks.library(site).to_string()
    };
    for (title, expected) in [
        ("torch_forward", "PyTorch allocator"),
        ("torch_wrapper_1", "PyTorch allocator"),
        ("cupy", "CuPy"),
        ("cuda_buffer", "program"),
    ] {
        assert_eq!(library(&real(title)), expected, "{title}");
    }
    let inside = |function: &str, module: &str| {
        let module = Some(module.into());
        Frame { function: function.into(), module, ..Frame::default() }
    };
    for (module, expected) in [
        ("/opt/nccl/libnccl.so.2", "NCCL"),
        ("/usr/lib/libcublasLt.so.13", "cuBLAS"),
        ("/v/site-packages/nvidia/cudnn/lib/libcudnn_graph.so.9", "cuDNN"),
        ("/v/site-packages/vllm/_C.abi3.so", "vllm"),
        ("/srv/.triton/cache/ab/cuda_utils.so", "Triton"),
        ("/srv/build/libsolver.so", "libsolver"),
        ("/srv/build/solver", "program"),
        ("/usr/lib/x86_64-linux-gnu/libffi.so.8", "program"),
    ] {
        let stack = [driver(), inside("call", module), native("main", 3)];
        assert_eq!(library(&stack), expected, "{module}");
    }
    assert_eq!(library(&[driver(), python("step", "/srv/train.py", 3)]), "program");
    assert_eq!(library(&[driver()]), "unknown");
    assert_eq!(library(&[]), "unknown");
    assert_eq!(&*stacks.library(SiteId(999)), "unknown");
}
