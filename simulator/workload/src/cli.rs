//! The command line.

mod contexts;

use clap::{Args, Parser, Subcommand};

pub(crate) use contexts::{CaptureEnd, CaptureEndBy, ContextStack, OpenCaptures, OpenCapturesThen};

/// Uses CUDA memory in known ways, on a simulated or a real driver.
#[derive(Parser)]
#[command(name = "workload", version)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) program: Program,
}

/// What every program knows.
#[derive(Args, Clone)]
pub(crate) struct Common {
    /// Makes random choices repeatable
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The device to use
    #[arg(long, global = true, default_value_t = 0)]
    pub(crate) device: i32,
    /// Print `ready` and wait for a line on standard input, or for SIGUSR1, before anything else
    #[arg(long, global = true)]
    pub(crate) wait_start: bool,
    /// Wait this long at the end, with everything still live
    #[arg(long, global = true, default_value_t = 0)]
    pub(crate) hold_ms: u64,
    /// Name of the main thread, and so of the process; the kernel keeps 15 bytes of it
    #[arg(long, global = true, default_value = "workload")]
    pub(crate) name: std::ffi::CString,
}

/// The programs.
#[derive(Subcommand)]
pub(crate) enum Program {
    /// Three allocations of 8 MiB, some work, two frees, a wait: one is left
    Leak3(Leak3),
    /// Steps that allocate and free on two threads, and keep a buffer now and then
    Train(Train),
    /// Processes that allocate and free, and forget some
    Stressor(Stressor),
    /// One process of the stressor
    #[command(hide = true)]
    StressorProcess(StressorProcess),
    /// Threads that allocate and free, each other's memory too
    Threads(Threads),
    /// Equal allocations on some threads, and a single huge one among them
    Anomaly(Anomaly),
    /// As many allocations and frees a second as asked for
    Spam(Spam),
    /// A number of live allocations, then a wait
    Hold(Hold),
    /// Allocates until the device is full
    Oom(Oom),
    /// Contexts with memory in them: created, pushed, popped, destroyed, reset
    Contexts,
    /// Contexts pushed many levels deep, with memory at the top and after the pops
    ContextStack(ContextStack),
    /// A capture with a memory node, ended in one of several ways, and stream-ordered memory after it
    CaptureEnd(CaptureEnd),
    /// Captures of two threads that are left open
    OpenCaptures(OpenCaptures),
    /// One allocation of each kind; some are freed
    Kinds,
    /// A process that forks, and a child that uses the driver anew
    Fork,
    /// A process that allocates and then becomes another program
    Exec,
    /// Launches kernels, in every way there is
    Launches(Launches),
    /// Launches kernels, waits, and launches them again
    LaunchLate(LaunchLate),
    /// Copies and fills memory, in every way there is
    Copies(Copies),
    /// Makes and destroys objects that are no memory, and forgets some
    Objects(Objects),
    /// Tensors of the simulated PyTorch, all of which are given back
    TorchClean(Torch),
    /// The same, with one in each step that is kept
    TorchLeak(Torch),
    /// As many tensors as go, and back again
    TorchSpam(TorchSpam),
    /// A process that shares its memory with a child process
    Ipc,
    /// The child process of `ipc`
    #[command(hide = true)]
    IpcChild(IpcChild),
    /// A program that leaks, or only seems to: one of a corpus with the truth about each
    Leaks(Leaks),
    /// Loads the driver late
    DlopenLate(DlopenLate),
    /// A random program over the whole memory API
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
pub(crate) struct Torch {
    /// How many steps
    #[arg(long, default_value_t = 20)]
    pub(crate) steps: u64,
    /// How long a step takes
    #[arg(long, default_value_t = 0)]
    pub(crate) step_ms: u64,
    /// The size of the tensor that each step of `torch-leak` keeps
    #[arg(long, default_value_t = 1500)]
    pub(crate) keep_bytes: u64,
    /// Print `ready` and wait for a line when the weights are there
    #[arg(long)]
    pub(crate) wait_loaded: bool,
    /// Ask for more than there is at the end
    #[arg(long)]
    pub(crate) refuse: bool,
    /// Give unused segments back at the end
    #[arg(long)]
    pub(crate) empty_cache: bool,
}

/// Options of `torch-spam`.
#[derive(Args)]
pub(crate) struct TorchSpam {
    /// How many requests, each with its end
    #[arg(long, default_value_t = 100_000)]
    pub(crate) pairs: u64,
    /// From how many different stacks, 32 at most
    #[arg(long, default_value_t = 1)]
    pub(crate) stacks: u64,
    /// How often that is done and timed
    #[arg(long, default_value_t = 1)]
    pub(crate) rounds: u64,
}

/// Options of `train`.
#[derive(Args)]
pub(crate) struct Train {
    /// How many steps
    #[arg(long, default_value_t = 200)]
    pub(crate) steps: u64,
    /// Keep one buffer every so many steps
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep_every: u64,
    /// How long a step takes
    #[arg(long, default_value_t = 10)]
    pub(crate) step_ms: u64,
    /// The size of a buffer in MiB
    #[arg(long, default_value_t = 8)]
    pub(crate) mb: usize,
}

/// Options of `stressor`.
#[derive(Args)]
pub(crate) struct Stressor {
    /// How many processes
    #[arg(long, default_value_t = 4)]
    pub(crate) procs: u32,
    #[command(flatten)]
    pub(crate) process: StressorProcess,
}

/// Options of one process of the stressor.
#[derive(Args)]
pub(crate) struct StressorProcess {
    /// Seconds
    #[arg(long, default_value_t = 120.0)]
    pub(crate) duration: f64,
    /// The smallest allocation in MiB
    #[arg(long, default_value_t = 2)]
    pub(crate) min_mb: usize,
    /// The largest allocation in MiB
    #[arg(long, default_value_t = 10)]
    pub(crate) max_mb: usize,
    /// Pause between two allocations
    #[arg(long, default_value_t = 25)]
    pub(crate) sleep_ms: u64,
    /// How likely an allocation is forgotten
    #[arg(long, default_value_t = 0.1)]
    pub(crate) leak_prob: f64,
}

/// Options of `threads`.
#[derive(Args)]
pub(crate) struct Threads {
    /// How many threads
    #[arg(long, default_value_t = 5)]
    pub(crate) threads: usize,
    /// Seconds
    #[arg(long, default_value_t = 60.0)]
    pub(crate) duration: f64,
    /// The largest allocation in MiB
    #[arg(long, default_value_t = 10)]
    pub(crate) max_tensor_mb: usize,
    /// How likely a step allocates instead of freeing
    #[arg(long, default_value_t = 0.65)]
    pub(crate) alloc_prob: f64,
    /// The most memory live at a time, in MiB
    #[arg(long, default_value_t = 4096)]
    pub(crate) memory_cap_mb: usize,
}

/// Options of `anomaly`.
#[derive(Args)]
pub(crate) struct Anomaly {
    /// How many threads
    #[arg(long, default_value_t = 4)]
    pub(crate) threads: usize,
    /// How many allocations each thread makes
    #[arg(long, default_value_t = 20)]
    pub(crate) iterations: u64,
    /// The size of a normal allocation in MiB
    #[arg(long, default_value_t = 10)]
    pub(crate) normal_mb: usize,
    /// The size of the huge allocation in MiB
    #[arg(long, default_value_t = 2096)]
    pub(crate) anomaly_mb: usize,
    /// The thread that makes it
    #[arg(long, default_value_t = 0)]
    pub(crate) anomaly_thread: usize,
    /// The iteration in which it makes it
    #[arg(long, default_value_t = 5)]
    pub(crate) anomaly_iter: u64,
    /// How long an iteration takes
    #[arg(long, default_value_t = 100)]
    pub(crate) iter_ms: u64,
}

/// How many events a second `spam` makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Throughput {
    /// As many as possible.
    Max,
    /// So many.
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
    /// Events a second, or `max`; an allocation and a free are one event each
    #[arg(long, default_value = "4000", value_parser = throughput)]
    pub(crate) throughput: Throughput,
    /// Bytes of an allocation
    #[arg(long, default_value_t = 2048)]
    pub(crate) allocate_size: usize,
    /// The part of the allocations that is freed
    #[arg(long, default_value_t = 1.0)]
    pub(crate) free_ratio: f64,
    /// Seconds
    #[arg(long, default_value_t = 30.0)]
    pub(crate) duration: f64,
    /// Stop after so many events
    #[arg(long)]
    pub(crate) count: Option<u64>,
}

/// Options of `hold`.
#[derive(Args)]
pub(crate) struct Hold {
    /// How many allocations
    #[arg(long)]
    pub(crate) count: usize,
    /// Bytes of each
    #[arg(long)]
    pub(crate) size: usize,
    /// Make each a byte larger than the one before
    #[arg(long)]
    pub(crate) distinct: bool,
    /// What to allocate
    #[arg(long, value_enum, default_value = "device")]
    pub(crate) kind: HoldKind,
    /// How long to wait with all of them live
    #[arg(long, default_value_t = 0)]
    pub(crate) wait_ms: u64,
}

/// What `hold` allocates.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HoldKind {
    /// Plain device memory
    Device,
    /// Rows of 16 bytes, to which the driver adds the rest of the pitch
    Pitched,
    /// Arrays
    Array,
    /// Arrays with mip levels
    Mipmapped,
}

/// Options of `oom`.
#[derive(Args)]
pub(crate) struct Oom {
    /// The size of each allocation in MiB
    #[arg(long, default_value_t = 512)]
    pub(crate) chunk_mb: usize,
    /// How long to wait when the device is full
    #[arg(long, default_value_t = 2000)]
    pub(crate) wait_ms: u64,
}

/// Options of `launches`.
#[derive(Args, Clone)]
pub(crate) struct Launches {
    /// How often each thread launches each kernel
    #[arg(long, default_value_t = 1000)]
    pub(crate) iterations: u64,
    /// How many kernels each process has
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kernels: u32,
    /// How many threads each process has
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) threads: u32,
    /// How many processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) processes: u32,
    /// How many launches of the first kernel each process makes in vain at the end
    #[arg(long, default_value_t = 0)]
    pub(crate) failing: u64,
    /// How often each process launches a graph that it captured of one launch of each kernel
    #[arg(long, default_value_t = 0)]
    pub(crate) graphs: u64,
    /// How many modules each process loads, launches a kernel of five times, and unloads again
    #[arg(long, default_value_t = 0)]
    pub(crate) reloads: u32,
    /// By cuLaunchKernel and with one shape only, and tell how long a launch takes
    #[arg(long)]
    pub(crate) time: bool,
    /// Pause between two iterations
    #[arg(long, default_value_t = 0)]
    pub(crate) pause_ms: u64,
}

/// Options of `launch-late`.
#[derive(Args)]
pub(crate) struct LaunchLate {
    /// How often each kernel is launched before the wait
    #[arg(long, default_value_t = 10)]
    pub(crate) before: u64,
    /// How often each kernel is launched after it
    #[arg(long, default_value_t = 1000)]
    pub(crate) iterations: u64,
    /// How many kernels
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kernels: u32,
    /// Wait this long, instead of for a line on standard input or SIGUSR1
    #[arg(long)]
    pub(crate) wait_ms: Option<u64>,
}

/// Options of `copies`.
#[derive(Args)]
pub(crate) struct Copies {
    /// How often everything is copied
    #[arg(long, default_value_t = 1)]
    pub(crate) iterations: u64,
    /// Pause between two iterations
    #[arg(long, default_value_t = 0)]
    pub(crate) pause_ms: u64,
}

/// Options of `objects`.
#[derive(Args, Clone)]
pub(crate) struct Objects {
    /// Only these kinds
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND,...")]
    pub(crate) kind: Vec<ObjectSort>,
    /// How many of each
    #[arg(long, default_value_t = 100)]
    pub(crate) count: u64,
    /// The part of them that is never destroyed
    #[arg(long, default_value_t = 0.1)]
    pub(crate) leak: f64,
    /// How many are made a second
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Make as many in a context before, and destroy the context
    #[arg(long)]
    pub(crate) in_context: bool,
    /// Make so many of each, print `ready`, wait for a line on standard input or SIGUSR1, and
    /// destroy them, before anything else
    #[arg(long, default_value_t = 0)]
    pub(crate) before: u64,
    /// Try so often to destroy one of each that was never made
    #[arg(long, default_value_t = 0)]
    pub(crate) failing: u64,
    /// Wait this long after the last of them
    #[arg(long, default_value_t = 0)]
    pub(crate) rest_ms: u64,
    /// Then fork, and let the child make half as many
    #[arg(long)]
    pub(crate) fork: bool,
    /// Then become another program, that makes half as many
    #[arg(long, conflicts_with = "fork")]
    pub(crate) exec: bool,
}

impl Objects {
    /// The kinds that were asked for: all, where nothing was said.
    pub(crate) fn kinds(&self) -> Vec<ObjectSort> {
        use clap::ValueEnum;
        if self.kind.is_empty() {
            return ObjectSort::value_variants().to_vec();
        }
        self.kind.clone()
    }
}

/// A kind of object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum ObjectSort {
    /// A stream
    Stream,
    /// An event
    Event,
    /// A graph: made, cloned or captured
    Graph,
    /// A graph that can be launched
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
    /// The handle of the memory, in hexadecimal
    #[arg(long)]
    pub(crate) handle: String,
}

/// Options of `leaks`.
#[derive(Args)]
pub(crate) struct Leaks {
    /// The scenario
    #[arg(required_unless_present = "list")]
    pub(crate) name: Option<String>,
    /// How long it runs, in seconds, instead of the time that its truth is told for
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Tell the truth about all scenarios as JSON, and run none
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
    /// How long to wait before the driver is loaded
    #[arg(long, default_value_t = 1000)]
    pub(crate) delay_ms: u64,
    #[command(flatten)]
    pub(crate) then: Leak3,
}

/// Options of `random`.
#[derive(Args)]
pub(crate) struct Random {
    /// How many steps, of all threads together
    #[arg(long, default_value_t = 10_000)]
    pub(crate) ops: u64,
    /// How many threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: u16,
    /// How many devices
    #[arg(long, default_value_t = 1)]
    pub(crate) devices: usize,
    /// Make no call that the driver must refuse
    #[arg(long)]
    pub(crate) no_illegal: bool,
    /// Besides plain device memory, use only these parts of the API
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,...")]
    pub(crate) only: Vec<Part>,
}

/// A part of the memory API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Part {
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
    /// Pools of the program
    Pool,
    /// Physical memory
    Physical,
    /// Reserved address ranges with physical memory mapped
    Mapped,
    /// Arrays
    Array,
    /// Mip-mapped arrays
    Mipmapped,
    /// Memory of another API; simulated drivers only
    External,
    /// Created and destroyed contexts
    Context,
    /// Graphs that allocate
    Graph,
    /// Captured streams
    Capture,
    /// Exported and imported physical memory
    Share,
    /// Multicast objects; simulated drivers only
    Multicast,
    /// Green contexts
    Green,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn common_options_may_stand_before_and_after_the_program() {
        let parse = |text: &str| Arguments::try_parse_from(text.split(' ')).unwrap();
        for text in ["workload --seed 7 leak3 --hold-ms 3", "workload leak3 --hold-ms 3 --seed 7"] {
            let arguments = parse(text);
            assert_eq!((arguments.common.seed, arguments.common.hold_ms), (7, 3));
        }
    }

    #[test]
    fn the_throughput_is_a_number_or_max() {
        assert_eq!(throughput("max"), Ok(Throughput::Max));
        assert_eq!(throughput("4000"), Ok(Throughput::PerSecond(4000.0)));
        assert!(throughput("0").is_err());
        assert!(throughput("fast").is_err());
    }
}
