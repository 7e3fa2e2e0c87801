//! Modules, kernels and their launches.

use std::ffi::{CStr, c_char, c_int};

use serde_json::{Value, json};

use crate::common::{
    FILE_NOT_FOUND, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, Library, NOT_FOUND,
    NOT_INITIALIZED, OK, OUT, entries, oracle_of,
};

/// A launch shape that every device can run.
const VALID_SHAPE: [u64; 7] = [2, 1, 1, 64, 1, 1, 0];
const IMAGE: &CStr = c".version 3.0";

fn module(cuda: Library) -> u64 {
    cuda.get("cuModuleLoadData", &[OUT, IMAGE.as_ptr() as u64])
}

fn function(cuda: Library, module: u64, name: &CStr) -> u64 {
    cuda.get("cuModuleGetFunction", &[OUT, module, name.as_ptr() as u64])
}

fn library(cuda: Library) -> u64 {
    cuda.get("cuLibraryLoadData", &[OUT, IMAGE.as_ptr() as u64])
}

fn kernel(cuda: Library, library: u64, name: &CStr) -> u64 {
    cuda.get("cuLibraryGetKernel", &[OUT, library, name.as_ptr() as u64])
}

fn launch(cuda: Library, function: u64, shape: [u64; 7], stream: u64) -> c_int {
    let [gx, gy, gz, bx, by, bz, shared] = shape;
    let arguments = [function, gx, gy, gz, bx, by, bz, shared, stream];
    cuda.call("cuLaunchKernel", &arguments)
}

/// Returns the counts of the kernels with a name, one entry for each handle.
fn counts(oracle: &Value, name: &str) -> Vec<(String, u64, u64, u64)> {
    let number = |entry: &Value, field: &str| entry[field].as_u64().unwrap();
    let found = entries(oracle, "launches", &[("name", name)]);
    let count = |entry: &&Value| {
        let handle_type = entry["type"].as_str().unwrap().to_owned();
        (handle_type, number(entry, "launches"), number(entry, "captured"), number(entry, "failed"))
    };
    let mut counts: Vec<_> = found.iter().map(count).collect();
    counts.sort();
    counts
}

#[test]
fn kernel_handle_points_to_name_at_byte_8() {
    oracle_of("kernel_handle_points_to_name_at_byte_8", &[], |cuda| {
        cuda.start(0);
        let in_module = function(cuda, module(cuda), c"_Z3addPf");
        let in_library = kernel(cuda, library(cuda), c"_Z3mulPf");
        let of_kernel = cuda.get("cuKernelGetFunction", &[OUT, in_library]);
        assert_ne!(of_kernel, in_library);
        assert_eq!(cuda.get("cuKernelGetFunction", &[OUT, in_library]), of_kernel);
        for (handle, name) in
            [(in_module, c"_Z3addPf"), (in_library, c"_Z3mulPf"), (of_kernel, c"_Z3mulPf")]
        {
            let pointer = (handle + 8) as *const *const c_char;
            // SAFETY: a handle is the address of an object of the driver that is long enough.
            let text = unsafe { CStr::from_ptr(pointer.read()) };
            assert_eq!(text, name);
            let text = cuda.get("cuFuncGetName", &[OUT, handle]) as *const c_char;
            // SAFETY: the driver returned a string that lives as long as the module.
            assert_eq!(unsafe { CStr::from_ptr(text) }, name);
        }
    });
}

#[test]
fn modules_and_libraries_list_their_kernels() {
    oracle_of("modules_and_libraries_list_their_kernels", &[], |cuda| {
        let early = cuda.out("cuModuleLoadData", &[OUT, IMAGE.as_ptr() as u64]).0;
        assert_eq!(early, NOT_INITIALIZED);
        assert_eq!(cuda.call("cuInit", &[0]), OK);
        let no_context = cuda.out("cuModuleLoadData", &[OUT, IMAGE.as_ptr() as u64]).0;
        assert_eq!(no_context, INVALID_CONTEXT);
        let library = library(cuda);
        cuda.start(0);
        assert_eq!(cuda.out("cuModuleLoadData", &[OUT, 0]).0, INVALID_VALUE);
        assert_eq!(cuda.call("cuModuleLoadFatBinary", &[0, 1]), INVALID_VALUE);
        let missing = c"/nonexistent/module.cubin".as_ptr() as u64;
        assert_eq!(cuda.out("cuModuleLoad", &[OUT, missing]).0, FILE_NOT_FOUND);
        assert_eq!(cuda.out("cuLibraryLoadFromFile", &[OUT, missing]).0, FILE_NOT_FOUND);
        let somewhere = c"/proc/self/exe".as_ptr() as u64;
        let from_file = cuda.get("cuLibraryLoadFromFile", &[OUT, somewhere]);
        assert_ne!(from_file, library);

        let module = module(cuda);
        let a = function(cuda, module, c"a");
        let b = function(cuda, module, c"b");
        assert_eq!(function(cuda, module, c"a"), a);
        assert_eq!(cuda.get("cuModuleGetFunctionCount", &[OUT, module]), 2);
        let mut found = [0_u64; 2];
        let pointer = found.as_mut_ptr() as u64;
        assert_eq!(cuda.call("cuModuleEnumerateFunctions", &[pointer, 2, module]), OK);
        assert_eq!(found, [a, b]);
        assert_eq!(cuda.get("cuFuncGetModule", &[OUT, b]), module);
        let k = kernel(cuda, library, c"k");
        assert_eq!(cuda.get("cuKernelGetLibrary", &[OUT, k]), library);

        let name = c"".as_ptr() as u64;
        assert_eq!(cuda.out("cuModuleGetFunction", &[OUT, module, name]).0, NOT_FOUND);
        let name = c"a".as_ptr() as u64;
        assert_eq!(cuda.out("cuModuleGetFunction", &[OUT, library, name]).0, INVALID_HANDLE);
        assert_eq!(cuda.out("cuLibraryGetKernel", &[OUT, module, name]).0, INVALID_HANDLE);
        assert_eq!(cuda.out("cuKernelGetFunction", &[OUT, a]).0, INVALID_HANDLE);
        assert_eq!(cuda.call("cuLibraryUnload", &[module]), INVALID_HANDLE);
        assert_eq!(cuda.call("cuModuleUnload", &[module]), OK);
        assert_eq!(cuda.call("cuModuleUnload", &[module]), INVALID_HANDLE);
        assert_eq!(launch(cuda, a, VALID_SHAPE, 0), INVALID_HANDLE);
        assert_eq!(cuda.call("cuLibraryUnload", &[library]), OK);
        assert_eq!(cuda.out("cuKernelGetName", &[OUT, k]).0, INVALID_HANDLE);
    });
}

#[test]
fn modules_end_with_their_context_and_libraries_do_not() {
    let test = "modules_end_with_their_context_and_libraries_do_not";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let k = kernel(cuda, library(cuda), c"k");
        let context = cuda.get("cuCtxCreate_v2", &[OUT, 0, 0]);
        let f = function(cuda, module(cuda), c"f");
        assert_eq!(launch(cuda, f, VALID_SHAPE, 0), OK);
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), OK);
        assert_eq!(launch(cuda, f, VALID_SHAPE, 0), INVALID_HANDLE);
        assert_eq!(launch(cuda, k, VALID_SHAPE, 0), OK);
    });
    assert_eq!(counts(&oracle, "f"), [("function".to_owned(), 1, 0, 0)]);
    assert_eq!(counts(&oracle, "k"), [("kernel".to_owned(), 1, 0, 0)]);
}

#[test]
fn every_launch_function_is_counted_with_its_shape() {
    let test = "every_launch_function_is_counted_with_its_shape";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let f = function(cuda, module(cuda), c"f");
        let k = kernel(cuda, library(cuda), c"f");
        let stream = cuda.get("cuStreamCreate", &[OUT, 0]);
        for name in [
            "cuLaunchKernel",
            "cuLaunchKernel_ptsz",
            "cuLaunchCooperativeKernel",
            "cuLaunchCooperativeKernel_ptsz",
        ] {
            for handle in [f, k] {
                let arguments = [handle, 4, 2, 1, 32, 8, 2, 1024, stream];
                assert_eq!(cuda.call(name, &arguments), OK, "{name}");
            }
        }
        // gridX 0 … blockZ 20, shared 24, stream 32, attributes 40, their number 48.
        let config = [3 | (1 << 32), 1 | (128 << 32), 1 | (1 << 32), 0, stream, 0, 0_u64];
        for name in ["cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"] {
            assert_eq!(cuda.call(name, &[config.as_ptr() as u64, f, 0, 0]), OK, "{name}");
        }
    });
    let found = entries(&oracle, "launches", &[("name", "f"), ("type", "function")]);
    let shapes = json!([
        {"grid": [3, 1, 1], "block": [128, 1, 1], "shared": 0, "count": 2},
        {"grid": [4, 2, 1], "block": [32, 8, 2], "shared": 1024, "count": 4},
    ]);
    assert_eq!(found[0]["shapes"], shapes);
    assert_eq!(found[0]["last"], json!({"grid": [3, 1, 1], "block": [128, 1, 1], "shared": 0}));
    let expected = [("function".to_owned(), 6, 0, 0), ("kernel".to_owned(), 4, 0, 0)];
    assert_eq!(counts(&oracle, "f"), expected);
}

#[test]
fn failed_launches_are_counted_by_kernel_and_result() {
    let test = "failed_launches_are_counted_by_kernel_and_result";
    let oracle = oracle_of(test, &[("SIM_INJECT_FAILURES", "cuLaunchKernel:2=719")], |cuda| {
        cuda.start(0);
        let f = function(cuda, module(cuda), c"f");
        assert_eq!(launch(cuda, f, VALID_SHAPE, 0), OK);
        assert_eq!(launch(cuda, f, VALID_SHAPE, 0), 719);
        for bad in [
            [0, 1, 1, 64, 1, 1, 0],
            [1, 65_536, 1, 64, 1, 1, 0],
            [1, 1, 1, 64, 1, 0, 0],
            [1, 1, 1, 32, 33, 1, 0],
            [1, 1, 1, 1025, 1, 1, 0],
            [1, 1, 1, 1, 1, 65, 0],
            [1, 1, 1, 64, 1, 1, 1 << 20],
        ] {
            assert_eq!(launch(cuda, f, bad, 0), INVALID_VALUE, "{bad:?}");
        }
        assert_eq!(launch(cuda, f, VALID_SHAPE, 0x1234), INVALID_HANDLE, "an unknown stream");
        assert_eq!(launch(cuda, 0, VALID_SHAPE, 0), INVALID_HANDLE);
        assert_eq!(launch(cuda, f + 8, VALID_SHAPE, 0), INVALID_HANDLE);
        assert_eq!(cuda.call("cuLaunchKernelEx", &[0, f, 0, 0]), INVALID_VALUE);
        let both = [f, 2, 1, 1, 64, 1, 1, 0, 0, 1, 1];
        assert_eq!(cuda.call("cuLaunchKernel", &both), INVALID_VALUE);
    });
    // Injected, seven shapes, the stream, no configuration, two kinds of parameters.
    assert_eq!(counts(&oracle, "f"), [("function".to_owned(), 1, 0, 11)]);
    let errors = entries(&oracle, "errors", &[]);
    let errors: Vec<_> = errors.iter().map(|e| (&e["function"], &e["code"], &e["count"])).collect();
    let (kernel, ex) = (json!("cuLaunchKernel"), json!("cuLaunchKernelEx"));
    assert_eq!(
        errors,
        [
            (&kernel, &json!(1), &json!(8)),
            (&kernel, &json!(400), &json!(3)),
            (&kernel, &json!(719), &json!(1)),
            (&ex, &json!(1), &json!(1)),
        ]
    );
}

#[test]
fn captured_launches_are_counted_separately() {
    let test = "captured_launches_are_counted_separately";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let f = function(cuda, module(cuda), c"f");
        let stream = cuda.get("cuStreamCreate", &[OUT, 1]);
        assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, 2]), OK);
        assert_eq!(launch(cuda, f, VALID_SHAPE, stream), OK);
        assert_eq!(launch(cuda, f, VALID_SHAPE, stream), OK);
        let device = cuda.alloc(4096);
        assert_eq!(cuda.call("cuMemsetD8Async", &[device, 0, 4096, stream]), OK);
        let graph = cuda.get("cuStreamEndCapture", &[stream, OUT]);
        let exec = cuda.get("cuGraphInstantiateWithFlags", &[OUT, graph, 0]);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), OK);
        assert_eq!(cuda.call("cuGraphLaunch_ptsz", &[exec, 0]), OK);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, 0x1234]), INVALID_HANDLE);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec + 8, 0]), INVALID_VALUE);
        assert_eq!(launch(cuda, f, VALID_SHAPE, stream), OK);
    });
    assert_eq!(counts(&oracle, "f"), [("function".to_owned(), 1, 2, 0)]);
    let graphs = oracle["graph_launches"].as_array().unwrap();
    assert_eq!(graphs.len(), 1);
    assert_eq!((&graphs[0]["launches"], &graphs[0]["failed"]), (&json!(2), &json!(1)));
    let fill = entries(&oracle, "copies", &[("function", "cuMemsetD8Async")]);
    assert_eq!((&fill[0]["calls"], &fill[0]["captured"]), (&json!(0), &json!(1)));
}
