//! CUDA objects: how they end, and how they are counted.

use serde_json::Value;

use crate::common::{INVALID_HANDLE, INVALID_VALUE, Library, OK, OUT, entries, oracle_of};

/// Returns live, created, destroyed, released, peak.
fn counts(oracle: &Value, kind: &str) -> [u64; 5] {
    let [row] = entries(oracle, "objects", &[("kind", kind)])[..] else {
        panic!("{kind} is not once in {oracle}");
    };
    ["live", "created", "destroyed", "released", "peak"].map(|name| row[name].as_u64().unwrap())
}

/// A resource or a descriptor; its content is not read.
static ANYTHING: [u64; 18] = [0; 18];

/// Creates one object of each kind that ends with its context; returns it with its destroy
/// function.
fn of_context(cuda: Library) -> [(&'static str, u64, &'static str); 6] {
    let any = ANYTHING.as_ptr() as u64;
    [
        ("stream", cuda.get("cuStreamCreate", &[OUT, 0]), "cuStreamDestroy_v2"),
        ("event", cuda.get("cuEventCreate", &[OUT, 0]), "cuEventDestroy_v2"),
        ("module", cuda.get("cuModuleLoadData", &[OUT, any]), "cuModuleUnload"),
        ("texture", cuda.get("cuTexObjectCreate", &[OUT, any, any, 0]), "cuTexObjectDestroy"),
        ("surface", cuda.get("cuSurfObjectCreate", &[OUT, any]), "cuSurfObjectDestroy"),
        ("linker", cuda.get("cuLinkCreate_v2", &[0, 0, 0, OUT]), "cuLinkDestroy"),
    ]
}

#[test]
fn objects_end_by_call_or_with_context() {
    let test = "objects_end_by_call_or_with_context";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let context = cuda.get("cuCtxCreate_v2", &[OUT, 0, 0]);
        let inside = of_context(cuda);
        let graph = cuda.get("cuGraphCreate", &[OUT, 0]);
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), OK);
        for (_, handle, destroy) in inside {
            assert_eq!(cuda.call(destroy, &[handle]), INVALID_HANDLE, "{destroy}");
        }
        assert_eq!(cuda.call("cuGraphDestroy", &[graph]), OK);
        for (_, handle, destroy) in of_context(cuda) {
            assert_eq!(cuda.call(destroy, &[handle]), OK, "{destroy}");
            assert_eq!(cuda.call(destroy, &[handle]), INVALID_HANDLE, "{destroy}");
        }
        of_context(cuda);
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), OK);
    });
    for kind in ["stream", "event", "module", "texture", "surface", "linker"] {
        assert_eq!(counts(&oracle, kind), [0, 3, 1, 2, 1], "{kind}");
    }
    assert_eq!(counts(&oracle, "graph"), [0, 1, 1, 0, 1]);
    assert_eq!(counts(&oracle, "context"), [0, 1, 1, 0, 1]);
}

#[test]
fn captures_and_clones_count_as_graphs() {
    let test = "captures_and_clones_count_as_graphs";
    let oracle = oracle_of(test, &[("SIM_INJECT_FAILURES", "cuEventCreate:1=2")], |cuda| {
        cuda.start(0);
        let stream = cuda.get("cuStreamCreateWithPriority", &[OUT, 1, 0]);
        assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, 2]), OK);
        let captured = cuda.get("cuStreamEndCapture", &[stream, OUT]);
        let clone = cuda.get("cuGraphClone", &[OUT, captured]);
        cuda.get("cuGraphInstantiateWithFlags", &[OUT, clone, 0]);
        assert_eq!(cuda.call("cuGraphDestroy", &[captured]), OK);
        assert_eq!(cuda.out("cuEventCreate", &[OUT, 0]).0, 2);
        assert_eq!(
            cuda.out("cuEventCreate", &[OUT, 4]).0,
            INVALID_VALUE,
            "shared ones are untimed"
        );
        let event = cuda.get("cuEventCreate", &[OUT, 6]);
        assert_eq!(cuda.call("cuEventRecord", &[event, stream]), OK);
        assert_eq!(cuda.call("cuEventSynchronize", &[event]), OK);
        assert_eq!(cuda.call("cuEventDestroy", &[stream]), INVALID_HANDLE);
    });
    assert_eq!(counts(&oracle, "graph"), [1, 2, 1, 0, 2]);
    assert_eq!(counts(&oracle, "graph_exec"), [1, 1, 0, 0, 1]);
    assert_eq!(counts(&oracle, "event"), [1, 1, 0, 0, 1]);
    assert_eq!(entries(&oracle, "objects", &[("kind", "texture")]).len(), 0);
}

#[test]
fn streams_of_a_green_context_outlive_it() {
    let test = "streams_of_a_green_context_outlive_it";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let resource = [0_u64; 32];
        let pointer = resource.as_ptr() as u64;
        let descriptor = cuda.get("cuDevResourceGenerateDesc", &[OUT, pointer, 1]);
        let green = cuda.get("cuGreenCtxCreate", &[OUT, descriptor, 0, 1]);
        let stream = cuda.get("cuGreenCtxStreamCreate", &[OUT, green, 1, 0]);
        assert_eq!(cuda.call("cuGreenCtxDestroy", &[green]), OK);
        assert_eq!(cuda.call("cuStreamDestroy_v2", &[stream]), OK);
    });
    assert_eq!(counts(&oracle, "green_context"), [0, 1, 1, 0, 1]);
    assert_eq!(counts(&oracle, "stream"), [0, 1, 1, 0, 1]);
}
