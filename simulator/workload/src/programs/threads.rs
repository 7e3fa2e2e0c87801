//! Programs with several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::MIB;
use crate::cli::{Anomaly, Threads, Train};
use crate::cuda::{Device, Pointer};
use crate::signals;

/// Starts a thread with a name and the device's context.
pub(super) fn spawn<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    device: Device,
    number: usize,
    body: impl FnOnce() -> anyhow::Result<()> + Send + 'scope,
) -> anyhow::Result<ScopedJoinHandle<'scope, anyhow::Result<()>>> {
    let builder = Builder::new().name(format!("worker-{number}"));
    let handle = builder.spawn_scoped(scope, move || {
        device.enter()?;
        body()
    })?;
    Ok(handle)
}

/// Waits for threads, and returns the first error.
pub(super) fn join(handles: Vec<ScopedJoinHandle<'_, anyhow::Result<()>>>) -> anyhow::Result<()> {
    let results: Vec<_> = handles.into_iter().map(ScopedJoinHandle::join).collect();
    for result in results {
        result.map_err(|_| anyhow!("a thread panicked"))??;
    }
    Ok(())
}

/// Runs steps on two threads that pass each other buffers to free.
pub(crate) fn train(device: Device, options: &Train) -> anyhow::Result<()> {
    let bytes = options.mb * MIB;
    let (to_worker, from_main) = sync_channel::<Pointer>(1);
    let (to_main, from_worker) = sync_channel::<Pointer>(1);
    std::thread::scope(|scope| {
        let worker = spawn(scope, device, 1, move || second(device, bytes, &from_main, &to_main))?;
        let result = steps(device, options, bytes, &to_worker, &from_worker);
        // Without a sender, the worker's next receive fails and ends it.
        drop(to_worker);
        let worker = join(vec![worker]);
        result.and(worker)
    })
}

fn steps(
    device: Device,
    options: &Train,
    bytes: usize,
    to_worker: &SyncSender<Pointer>,
    from_worker: &Receiver<Pointer>,
) -> anyhow::Result<()> {
    for step in 1..=options.steps {
        let own = device.alloc(bytes)?;
        let passed_on = device.alloc(bytes)?;
        to_worker.send(passed_on)?;
        let received = from_worker.recv()?;
        device.driver.synchronize()?;
        device.free(received)?;
        if step % options.keep_every != 0 {
            device.free(own)?;
        }
        if !signals::sleep_ms(options.step_ms) {
            break;
        }
    }
    Ok(())
}

/// The second thread: for each buffer that it receives, it allocates one to pass on, and one for
/// itself.
fn second(
    device: Device,
    bytes: usize,
    from_main: &Receiver<Pointer>,
    to_main: &SyncSender<Pointer>,
) -> anyhow::Result<()> {
    while let Ok(received) = from_main.recv() {
        let own = device.alloc(bytes / 2)?;
        let passed_on = device.alloc(bytes)?;
        device.free(received)?;
        device.free(own)?;
        // The receiver is gone: the main thread failed and reports why.
        if to_main.send(passed_on).is_err() {
            device.free(passed_on)?;
        }
    }
    Ok(())
}

/// State shared by the threads of `threads`.
struct Shared {
    buffers: Mutex<Vec<(Pointer, usize)>>,
    live: AtomicUsize,
    cap: usize,
}

/// Makes random allocations and frees on several threads; memory that is live at the end stays
/// live.
pub(crate) fn threads(device: Device, seed: u64, options: &Threads) -> anyhow::Result<()> {
    let shared = Shared {
        buffers: Mutex::new(Vec::new()),
        live: AtomicUsize::new(0),
        cap: options.memory_cap_mb * MIB,
    };
    let end = Instant::now() + Duration::from_secs_f64(options.duration.max(0.0));
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for number in 0..options.threads {
            let random = fastrand::Rng::with_seed(seed.wrapping_add(number as u64));
            let shared = &shared;
            handles.push(spawn(scope, device, number, move || {
                allocate_and_free(device, options, random, shared, end)
            })?);
        }
        join(handles)
    })
}

fn allocate_and_free(
    device: Device,
    options: &Threads,
    mut random: fastrand::Rng,
    shared: &Shared,
    end: Instant,
) -> anyhow::Result<()> {
    let buffers = || shared.buffers.lock().unwrap_or_else(PoisonError::into_inner);
    while Instant::now() < end {
        if random.f64() < options.alloc_prob {
            let bytes = random.usize(1..=options.max_tensor_mb.max(1) * MIB);
            let before = shared.live.fetch_add(bytes, Ordering::Relaxed);
            if before + bytes > shared.cap {
                shared.live.fetch_sub(bytes, Ordering::Relaxed);
            } else {
                let pointer = device.alloc(bytes)?;
                buffers().push((pointer, bytes));
            }
        } else {
            let removed = {
                let mut buffers = buffers();
                let count = buffers.len();
                (count > 0).then(|| buffers.swap_remove(random.usize(..count)))
            };
            if let Some((pointer, bytes)) = removed {
                device.free(pointer)?;
                shared.live.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
        if !signals::sleep_ms(2) {
            break;
        }
    }
    Ok(())
}

/// Number of buffers that each thread of `anomaly` keeps.
const WINDOW_BUFFERS: usize = 3;

/// Each thread keeps its last few buffers; the huge one stays live until the end.
pub(crate) fn anomaly(device: Device, options: &Anomaly) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for number in 0..options.threads {
            handles.push(spawn(scope, device, number, move || iterate(device, options, number))?);
        }
        join(handles)
    })
}

fn iterate(device: Device, options: &Anomaly, number: usize) -> anyhow::Result<()> {
    let mut window = std::collections::VecDeque::new();
    for iteration in 0..options.iterations {
        if number == options.anomaly_thread && iteration == options.anomaly_iter {
            let pointer = device.alloc(options.anomaly_mb * MIB)?;
            crate::print_line(&format!(
                "anomaly: {} MiB at {pointer:#x} on worker-{number}, iteration {iteration}",
                options.anomaly_mb
            ));
        } else {
            window.push_back(device.alloc(options.normal_mb * MIB)?);
        }
        if window.len() > WINDOW_BUFFERS
            && let Some(oldest) = window.pop_front()
        {
            device.free(oldest)?;
        }
        if !signals::sleep_ms(options.iter_ms) {
            break;
        }
    }
    Ok(())
}
