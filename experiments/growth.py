#!/usr/bin/env python3
"""What a live allocation and a report cost the tracer, by how many allocations are live.

usage: growth.py [--build FOLDER] [--counts 1000 100000 1000000]

Starts the workload `hold` on the simulated driver with N live allocations under `vramscope trace`,
and reads the tracer's memory and CPU time from /proc. Needs root, no GPU.
"""
import argparse
import os
import subprocess
import time

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE


def cpu(pid):
    """User and system seconds, over all threads, to the nanosecond where the kernel tells."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def measure(build, count, distinct):
    driver = os.path.join(build, "sim")
    environment = {**os.environ, "LD_LIBRARY_PATH": driver, "SIM_MEMORY": "100000G"}
    command = [os.path.join(driver, "workload"), "--wait-start", "hold", "--count", str(count),
               "--size", "4096", "--wait-ms", "600000"] + (["--distinct"] if distinct else [])
    player = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    player.stdout.readline()
    tracer = subprocess.Popen(
        [os.path.join(build, "vramscope"), "trace", "--json", "--interval", "20ms", "--top", "10",
         "--driver", os.path.join(driver, "libcuda.so.1"), "-p", str(player.pid), "-o", "/tmp/growth.jsonl"],
        stderr=subprocess.DEVNULL)
    time.sleep(1.5)
    before = resident(tracer.pid)
    player.stdin.write(b"go\n")
    player.stdin.flush()
    player.stdout.readline()
    time.sleep(2)
    after = resident(tracer.pid)

    def reports():
        with open("/tmp/growth.jsonl", "rb") as file:
            return sum(1 for _ in file)

    start_reports, start_cpu, start = reports(), cpu(tracer.pid), time.time()
    time.sleep(4)
    made, used, span = reports() - start_reports, cpu(tracer.pid) - start_cpu, time.time() - start
    tracer.send_signal(2)
    tracer.wait()
    player.kill()
    player.wait()
    return (after - before) / count, after / 1e6, used / made * 1e6, used / span * 100


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="target/release")
    parser.add_argument("--counts", nargs="*", type=int, default=[1000, 100_000, 1_000_000])
    options = parser.parse_args()
    print("| live | sizes | bytes per live allocation | tracer's memory, MB | CPU per report, us |")
    print("|---:|---|---:|---:|---:|")
    for count in options.counts:
        for distinct in (False, True):
            each, megabytes, report, _ = measure(options.build, count, distinct)
            sizes = "all distinct" if distinct else "all the same"
            print(f"| {count:,} | {sizes} | {each:.1f} | {megabytes:.1f} | {report:.0f} |", flush=True)


if __name__ == "__main__":
    main()
