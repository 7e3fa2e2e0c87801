//! Writes a recording of many processes for `experiments/cost/top.py`: `many_processes PROCESSES SITES
//! SECONDS FILE`. Each site allocates or frees once in ten seconds; one process in ten leaks.
#![allow(clippy::unwrap_used, reason = "an experiment fails loudly")]

use std::fs::File;

use engine::model::event::{
    Allocate, Event, EventKind, Free, FreeFunction, ProcessInfo, SiteFrames,
};
use engine::model::ids::{AllocationKey, ContextId, DeviceId, GpuId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, Language};
use engine::model::units::Timestamp;
use formats::WallClock;
use formats::export::GpuLabel;
use formats::recording::{RecordingHeader, RecordingWriter};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1000 * SECOND;

/// Seconds between two calls of a site.
const PERIOD: u64 = 10;

fn event(pid: u32, at: u64, kind: EventKind) -> Event {
    let time = Timestamp(at);
    Event { pid: Pid(pid), tid: Tid(pid), entry_time: Timestamp(at - 1000), time, kind }
}

fn frames(pid: u32, site: u32) -> Box<[Frame]> {
    let frame = |function: &str, line: u32| Frame {
        function: function.into(),
        file: Some(format!("/srv/job{pid}/train.py").into()),
        line,
        language: Language::Python,
        ..Frame::default()
    };
    let native = |function: &str, module: &str| Frame {
        function: function.into(),
        module: Some(module.into()),
        ..Frame::default()
    };
    [
        native("cuMemAlloc_v2", "/usr/lib/libcuda.so.1"),
        native("cudaMalloc", "/usr/lib/libcudart.so.12"),
        native("c10::cuda::CUDACachingAllocator::malloc", "/usr/lib/libc10_cuda.so"),
        frame(&format!("layer{site}"), 10 + site),
        frame("step", 5),
        frame("<module>", 1),
    ]
    .into()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments[index].parse::<u32>().unwrap();
    let (processes, sites, seconds) = (number(0), number(1), u64::from(number(2)));
    let header = RecordingHeader {
        source: None,
        version: "0".into(),
        hostname: "host".into(),
        kernel: "0".into(),
        target: "an experiment".into(),
        activity: false,
        clock: WallClock::fixed(Timestamp(START), 0),
        gpus: vec![GpuLabel {
            id: GpuId(0),
            uuid: "GPU-0".into(),
            name: "NVIDIA H200".into(),
            total_bytes: 140 << 30,
        }],
    };
    let file = File::create(&arguments[3]).unwrap();
    let mut writer = RecordingWriter::new(file, &header, |_| "").unwrap();
    for pid in 1..=processes {
        let info = ProcessInfo {
            start: START - SECOND,
            uid: 1000 + pid % 7,
            name: "python3".into(),
            before_trace: false,
        };
        writer.event(&event(pid, START, EventKind::Process(info))).unwrap();
        for site in 0..sites {
            let id = SiteId(pid * sites + site);
            let found = SiteFrames { site: id, frames: frames(pid, site) };
            writer.event(&event(pid, START, EventKind::Site(found))).unwrap();
        }
    }
    for second in 0..seconds {
        for pid in 1..=processes {
            for site in (0..sites).filter(|site| u64::from(*site) % PERIOD == second % PERIOD) {
                let at =
                    START + second * SECOND + u64::from(pid) * SECOND / (u64::from(processes) + 1);
                let round = second / PERIOD;
                let leaks = pid % 10 == 0 && site == 0;
                let base = (u64::from(pid) << 40) + (u64::from(site) << 32);
                let key = AllocationKey::address(base + if leaks { round << 21 } else { 0 });
                let kind = if leaks || round.is_multiple_of(2) {
                    EventKind::Allocate(Allocate {
                        key,
                        kind: MemoryKind::Device,
                        bytes: 1 << 20,
                        context: Some(ContextId(1)),
                        device: Some(DeviceId(0)),
                        pool: None,
                        stream: None,
                        site: Some(SiteId(pid * sites + site)),
                    })
                } else {
                    EventKind::Free(Free { key, by: FreeFunction::Free, stream: None })
                };
                writer.event(&event(pid, at, kind)).unwrap();
            }
        }
        let free = (140 << 30) - (second << 26);
        let kind = EventKind::GpuFree { gpu: GpuId(0), bytes: free };
        writer.event(&event(0, START + (second + 1) * SECOND - 1, kind)).unwrap();
    }
    writer.finish(Timestamp(START + seconds * SECOND)).unwrap();
}
