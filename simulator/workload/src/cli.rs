//! The command line.

mod contexts;

use clap::{Args, Parser, Subcommand};

pub(crate) use contexts::{CaptureEnd, CaptureEndBy, ContextStack, OpenCaptures, OpenCapturesThen};

/// Uses CUDA memory in known ways, on a simulated or a real driver.
#[derive(Parser)]
#[command(name = "workload", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(subcommand)]
    pub(crate) program: Program,
}

/// Options of all programs.
#[derive(Args, Clone)]
pub(crate) struct CommonArgs {
    /// Seed of random choices
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Device to use
    #[arg(long, global = true, default_value_t = 0)]
    pub(crate) device: i32,
    /// Print `ready` and wait for a line on standard input, or for SIGUSR1, before anything else
    #[arg(long, global = true)]
    pub(crate) wait_start: bool,
    /// Hold all memory for this long at the end
    #[arg(long, global = true, default_value_t = 0)]
    pub(crate) hold_ms: u64,
    /// Name of the main thread, and so of the process; the kernel keeps 15 bytes of it
    #[arg(long, global = true, hide = true, default_value = "workload")]
    pub(crate) process_name: std::ffi::CString,
}

/// The programs.
#[derive(Subcommand)]
pub(crate) enum Program {
    /// Make three allocations of 8 MiB, work, free two of them, and wait
    Leak3(Leak3),
    /// Allocate and free in steps on two threads, and keep a buffer occasionally
    Train(Train),
    /// Start processes that allocate and free, and leak some allocations
    Stressor(Stressor),
    /// Run one process of the stressor
    #[command(hide = true)]
    StressorProcess(StressorProcess),
    /// Start threads that allocate, and free memory of any thread
    Threads(Threads),
    /// Make equal allocations on several threads, and a single huge one among them
    Anomaly(Anomaly),
    /// Allocate and free at a given rate
    Spam(Spam),
    /// Make a number of live allocations, then wait
    Hold(Hold),
    /// Allocate until the device is full
    Oom(Oom),
    /// Create, push, pop, destroy and reset contexts with memory in them
    Contexts,
    /// Push contexts many levels deep, with memory at the top and after the pops
    ContextStack(ContextStack),
    /// Capture a memory node, end the capture in one of several ways, and allocate stream-ordered
    /// memory
    CaptureEnd(CaptureEnd),
    /// Begin captures on two threads, and leave them open
    OpenCaptures(OpenCaptures),
    /// Make one allocation of each kind, and free some
    Kinds,
    /// Fork, and use the driver in the child
    Fork,
    /// Allocate, then exec another program
    Exec,
    /// Launch kernels with every launch function
    Launches(Launches),
    /// Launch kernels, wait, and launch them again
    LaunchLate(LaunchLate),
    /// Copy and set memory with every function
    Copies(Copies),
    /// Create and destroy CUDA objects, and leak some
    Objects(Objects),
    /// Allocate tensors of the simulated PyTorch, and free all of them
    TorchClean(AllocatorArgs),
    /// Like torch-clean, but keep one tensor of each step
    TorchLeak(AllocatorArgs),
    /// Allocate and free tensors as fast as possible
    TorchSpam(TorchSpam),
    /// Share memory with a child process
    Ipc,
    /// Run the child process of `ipc`
    #[command(hide = true)]
    IpcChild(IpcChild),
    /// Run a labeled scenario that leaks, or only seems to
    Leaks(Leaks),
    /// Load the driver late
    DlopenLate(DlopenLate),
    /// Make random calls of the whole memory API
    Random(Random),
}

/// Options of `leak3`.
#[derive(Args)]
pub(crate) struct Leak3 {
    /// Time between the allocations and the frees
    #[arg(long, default_value_t = 2000)]
    pub(crate) work_ms: u64,
    /// Time between the frees and the end
    #[arg(long, default_value_t = 2000)]
    pub(crate) wait_ms: u64,
}

/// Options of the programs with tensors.
#[derive(Args)]
pub(crate) struct AllocatorArgs {
    /// Number of steps
    #[arg(long, default_value_t = 20)]
    pub(crate) steps: u64,
    /// Length of a step in milliseconds
    #[arg(long, default_value_t = 0)]
    pub(crate) step_ms: u64,
    /// Size of the tensor that each step of `torch-leak` keeps
    #[arg(long, default_value_t = 1500)]
    pub(crate) keep_bytes: u64,
    /// Print `ready` and wait for a line when the weights are allocated
    #[arg(long)]
    pub(crate) wait_loaded: bool,
    /// Request more memory than the device has, at the end
    #[arg(long)]
    pub(crate) refuse: bool,
    /// Empty the cache at the end
    #[arg(long)]
    pub(crate) empty_cache: bool,
}

/// Options of `torch-spam`.
#[derive(Args)]
pub(crate) struct TorchSpam {
    /// Number of tensors, each allocated and freed
    #[arg(long, default_value_t = 100_000)]
    pub(crate) pairs: u64,
    /// Number of distinct stacks, at most 32
    #[arg(long, default_value_t = 1)]
    pub(crate) stacks: u64,
    /// Number of timed rounds
    #[arg(long, default_value_t = 1)]
    pub(crate) rounds: u64,
}

/// Options of `train`.
#[derive(Args)]
pub(crate) struct Train {
    /// Number of steps
    #[arg(long, default_value_t = 200)]
    pub(crate) steps: u64,
    /// Keep one buffer every this many steps
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep_every: u64,
    /// Length of a step in milliseconds
    #[arg(long, default_value_t = 10)]
    pub(crate) step_ms: u64,
    /// Size of a buffer in MiB
    #[arg(long, default_value_t = 8)]
    pub(crate) mb: usize,
}

/// Options of `stressor`.
#[derive(Args)]
pub(crate) struct Stressor {
    /// Number of processes
    #[arg(long, default_value_t = 4)]
    pub(crate) procs: u32,
    #[command(flatten)]
    pub(crate) process: StressorProcess,
}

/// Options of one process of the stressor.
#[derive(Args)]
pub(crate) struct StressorProcess {
    /// Duration in seconds
    #[arg(long, default_value_t = 120.0)]
    pub(crate) duration: f64,
    /// Smallest allocation in MiB
    #[arg(long, default_value_t = 2)]
    pub(crate) min_mb: usize,
    /// Largest allocation in MiB
    #[arg(long, default_value_t = 10)]
    pub(crate) max_mb: usize,
    /// Pause between two allocations in milliseconds
    #[arg(long, default_value_t = 25)]
    pub(crate) sleep_ms: u64,
    /// Probability that an allocation is leaked
    #[arg(long, default_value_t = 0.1)]
    pub(crate) leak_prob: f64,
}

/// Options of `threads`.
#[derive(Args)]
pub(crate) struct Threads {
    /// Number of threads
    #[arg(long, default_value_t = 5)]
    pub(crate) threads: usize,
    /// Duration in seconds
    #[arg(long, default_value_t = 60.0)]
    pub(crate) duration: f64,
    /// Largest allocation in MiB
    #[arg(long, default_value_t = 10)]
    pub(crate) max_tensor_mb: usize,
    /// Probability that a step allocates instead of freeing
    #[arg(long, default_value_t = 0.65)]
    pub(crate) alloc_prob: f64,
    /// Maximum of live memory in MiB
    #[arg(long, default_value_t = 4096)]
    pub(crate) memory_cap_mb: usize,
}

/// Options of `anomaly`.
#[derive(Args)]
pub(crate) struct Anomaly {
    /// Number of threads
    #[arg(long, default_value_t = 4)]
    pub(crate) threads: usize,
    /// Allocations of each thread
    #[arg(long, default_value_t = 20)]
    pub(crate) iterations: u64,
    /// Size of a normal allocation in MiB
    #[arg(long, default_value_t = 10)]
    pub(crate) normal_mb: usize,
    /// Size of the huge allocation in MiB
    #[arg(long, default_value_t = 2096)]
    pub(crate) anomaly_mb: usize,
    /// Thread of the huge allocation
    #[arg(long, default_value_t = 0)]
    pub(crate) anomaly_thread: usize,
    /// Iteration of the huge allocation
    #[arg(long, default_value_t = 5)]
    pub(crate) anomaly_iter: u64,
    /// Length of an iteration in milliseconds
    #[arg(long, default_value_t = 100)]
    pub(crate) iter_ms: u64,
}

/// The event rate of `spam`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Throughput {
    /// Full speed.
    Max,
    /// Events per second.
    PerSecond(f64),
}

fn throughput(text: &str) -> Result<Throughput, String> {
    if text == "max" {
        return Ok(Throughput::Max);
    }
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(Throughput::PerSecond(number)),
        _ => Err("a number above zero, or `max`".to_owned()),
    }
}

/// Options of `spam`.
#[derive(Args)]
pub(crate) struct Spam {
    /// Events per second, or `max`; an allocation and a free are one event each
    #[arg(long, default_value = "4000", value_parser = throughput)]
    pub(crate) throughput: Throughput,
    /// Size of an allocation in bytes
    #[arg(long, default_value_t = 2048)]
    pub(crate) allocate_size: usize,
    /// Fraction of the allocations that is freed
    #[arg(long, default_value_t = 1.0)]
    pub(crate) free_ratio: f64,
    /// Duration in seconds
    #[arg(long, default_value_t = 30.0)]
    pub(crate) duration: f64,
    /// Stop after this many events
    #[arg(long)]
    pub(crate) count: Option<u64>,
}

/// Options of `hold`.
#[derive(Args)]
pub(crate) struct Hold {
    /// Number of allocations
    #[arg(long)]
    pub(crate) count: usize,
    /// Size of each in bytes
    #[arg(long)]
    pub(crate) size: usize,
    /// Make each allocation one byte larger than the previous one
    #[arg(long)]
    pub(crate) distinct: bool,
    /// Kind of memory
    #[arg(long, value_enum, default_value = "device")]
    pub(crate) kind: HoldKind,
    /// Milliseconds to wait with all of them live
    #[arg(long, default_value_t = 0)]
    pub(crate) wait_ms: u64,
}

/// The kind of memory that `hold` allocates.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HoldKind {
    /// Linear device memory
    Device,
    /// Rows of 16 bytes, which the driver pads to the pitch
    Pitched,
    /// Arrays
    Array,
    /// Arrays with mip levels
    Mipmapped,
}

/// Options of `oom`.
#[derive(Args)]
pub(crate) struct Oom {
    /// Size of each allocation in MiB
    #[arg(long, default_value_t = 512)]
    pub(crate) chunk_mb: usize,
    /// Milliseconds to wait when the device is full
    #[arg(long, default_value_t = 2000)]
    pub(crate) wait_ms: u64,
}

/// Options of `launches`.
#[derive(Args, Clone)]
pub(crate) struct Launches {
    /// Launches of each kernel by each thread
    #[arg(long, default_value_t = 1000)]
    pub(crate) iterations: u64,
    /// Number of kernels of each process
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kernels: u32,
    /// Number of threads of each process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) threads: u32,
    /// Number of processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) processes: u32,
    /// Failing launches of the first kernel by each process at the end
    #[arg(long, default_value_t = 0)]
    pub(crate) failing: u64,
    /// Launches by each process of a graph that captured one launch of each kernel
    #[arg(long, default_value_t = 0)]
    pub(crate) graphs: u64,
    /// Modules that each process loads, launches a kernel of five times, and unloads
    #[arg(long, default_value_t = 0)]
    pub(crate) reloads: u32,
    /// Launches of the first kernel by each process with each function from before CUDA 4, and on
    /// several devices at once
    #[arg(long, default_value_t = 0)]
    pub(crate) old: u64,
    /// Use cuLaunchKernel with one shape only, and print the time per launch
    #[arg(long)]
    pub(crate) time: bool,
    /// Pause between two iterations in milliseconds
    #[arg(long, default_value_t = 0)]
    pub(crate) pause_ms: u64,
}

/// Options of `launch-late`.
#[derive(Args)]
pub(crate) struct LaunchLate {
    /// Launches of each kernel before the wait
    #[arg(long, default_value_t = 10)]
    pub(crate) before: u64,
    /// Launches of each kernel after the wait
    #[arg(long, default_value_t = 1000)]
    pub(crate) iterations: u64,
    /// Number of kernels
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kernels: u32,
    /// Wait this many milliseconds, instead of for a line on standard input or SIGUSR1
    #[arg(long)]
    pub(crate) wait_ms: Option<u64>,
}

/// Options of `copies`.
#[derive(Args)]
pub(crate) struct Copies {
    /// Number of iterations
    #[arg(long, default_value_t = 1)]
    pub(crate) iterations: u64,
    /// Pause between two iterations in milliseconds
    #[arg(long, default_value_t = 0)]
    pub(crate) pause_ms: u64,
}

/// Options of `objects`.
#[derive(Args, Clone)]
pub(crate) struct Objects {
    /// Only these kinds
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND,...")]
    pub(crate) kind: Vec<ObjectKind>,
    /// Number of objects of each kind
    #[arg(long, default_value_t = 100)]
    pub(crate) count: u64,
    /// Fraction of them that is never destroyed
    #[arg(long, default_value_t = 0.1)]
    pub(crate) leak: f64,
    /// Objects created per second
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// First create as many in a context, and destroy the context
    #[arg(long)]
    pub(crate) in_context: bool,
    /// First create this many of each kind, print `ready`, wait for a line on standard input or
    /// SIGUSR1, and destroy them
    #[arg(long, default_value_t = 0)]
    pub(crate) before: u64,
    /// Try this often to destroy an invalid handle of each kind
    #[arg(long, default_value_t = 0)]
    pub(crate) failing: u64,
    /// Milliseconds to wait after the last object
    #[arg(long, default_value_t = 0)]
    pub(crate) rest_ms: u64,
    /// Then fork, and create half as many in the child
    #[arg(long)]
    pub(crate) fork: bool,
    /// Then exec a program that creates half as many
    #[arg(long, conflicts_with = "fork")]
    pub(crate) exec: bool,
}

impl Objects {
    /// Returns the requested kinds; all by default.
    pub(crate) fn kinds(&self) -> Vec<ObjectKind> {
        use clap::ValueEnum;
        if self.kind.is_empty() {
            return ObjectKind::value_variants().to_vec();
        }
        self.kind.clone()
    }
}

/// A kind of object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum ObjectKind {
    /// A stream
    Stream,
    /// An event
    Event,
    /// A graph: created, cloned or captured
    Graph,
    /// An executable graph
    GraphExec,
    /// A module
    Module,
    /// A library
    Library,
    /// A context
    Context,
    /// A green context
    GreenContext,
    /// A texture object
    Texture,
    /// A surface object
    Surface,
    /// A memory pool
    Pool,
    /// A linker
    Linker,
}

/// Options of the child process of `ipc`.
#[derive(Args)]
pub(crate) struct IpcChild {
    /// IPC handle of the memory, in hexadecimal [default: one per line on standard input]
    #[arg(long)]
    pub(crate) handle: Option<String>,
    /// Never close memory whose handle was read from standard input
    #[arg(long, conflicts_with = "handle")]
    pub(crate) keep: bool,
}

/// Options of `leaks`.
#[derive(Args)]
pub(crate) struct Leaks {
    /// Name of the scenario
    #[arg(required_unless_present = "list")]
    pub(crate) name: Option<String>,
    /// Duration in seconds [default: the duration that its labels are for]
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Print the labels of all scenarios as JSON, and run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Make the same calls without waiting between them
    #[arg(long)]
    pub(crate) no_wait: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1e6 => Ok(number),
        _ => Err("a number of seconds above zero".to_owned()),
    }
}

/// Options of `dlopen-late`.
#[derive(Args)]
pub(crate) struct DlopenLate {
    /// Milliseconds before the driver is loaded
    #[arg(long, default_value_t = 1000)]
    pub(crate) delay_ms: u64,
    #[command(flatten)]
    pub(crate) then: Leak3,
}

/// Options of `random`.
#[derive(Args)]
pub(crate) struct Random {
    /// Number of steps of all threads together
    #[arg(long, default_value_t = 10_000)]
    pub(crate) ops: u64,
    /// Number of threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: u16,
    /// Number of devices
    #[arg(long, default_value_t = 1)]
    pub(crate) devices: usize,
    /// Make no call that the driver must reject
    #[arg(long)]
    pub(crate) no_illegal: bool,
    /// Besides linear device memory, use only these areas of the API
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,...")]
    pub(crate) only: Vec<ApiArea>,
}

/// An area of the memory API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum ApiArea {
    /// Pitched memory
    Pitched,
    /// Managed memory
    Managed,
    /// Page-locked host memory
    Pinned,
    /// Registered host memory
    Registered,
    /// Stream-ordered memory of the default pool
    Async,
    /// Pools created by the program
    Pool,
    /// Physical memory
    Physical,
    /// Reserved address ranges with physical memory mapped
    Mapped,
    /// Arrays
    Array,
    /// Mip-mapped arrays
    Mipmapped,
    /// Memory of another API; simulated driver only
    External,
    /// Created and destroyed contexts
    Context,
    /// Graphs with allocation nodes
    Graph,
    /// Captured streams
    Capture,
    /// Exported and imported physical memory
    Share,
    /// Multicast objects; simulated driver only
    Multicast,
    /// Green contexts
    Green,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn common_options_may_precede_or_follow_the_program() {
        let parse = |text: &str| Cli::try_parse_from(text.split(' ')).unwrap();
        for text in ["workload --seed 7 leak3 --hold-ms 3", "workload leak3 --hold-ms 3 --seed 7"] {
            let arguments = parse(text);
            assert_eq!((arguments.common.seed, arguments.common.hold_ms), (7, 3));
        }
    }

    #[test]
    fn throughput_is_a_number_or_max() {
        assert_eq!(throughput("max"), Ok(Throughput::Max));
        assert_eq!(throughput("4000"), Ok(Throughput::PerSecond(4000.0)));
        assert!(throughput("0").is_err());
        assert!(throughput("fast").is_err());
    }
}
