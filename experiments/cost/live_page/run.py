#!/usr/bin/env python3
"""Measures the live page with many processes and sites: bytes per second, the agent's CPU time, frame time in Chromium.

usage: run.py [--processes 500] [--sites 20] [--period-ms 5000] [--seconds 30] …

Starts processes with as many allocation sites each, all different, whose memory changes. Then an agent traces them while
1 and 8 clients read the stream, and while Chromium shows the page. Needs root, Chromium, and the environment of
tools/python-env.
"""
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(os.path.dirname(HERE)))

from lib.paths import Setup, argument_parser
from lib.processes import Lines, kill_children_at_exit, start, stop, thread_cpu_seconds, wait_attached

# Reports the time between frames, and of tasks that block the page for more than 50 ms.
FRAMES = """(seconds) => new Promise((done) => {
  const times = [], long = [];
  new PerformanceObserver((list) => long.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: "longtask" });
  const end = performance.now() + seconds * 1000;
  const tick = (now) => { times.push(now); now < end ? requestAnimationFrame(tick) : done({ times, long }); };
  requestAnimationFrame(tick);
})"""


def read_stream(address, seconds, counted):
    """Reads the stream, and appends the sizes of the first event and of all others, and their number."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(b"GET /api/v1/stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        text, until, first = b"", None, 0
        while until is None or time.monotonic() < until:
            text += client.recv(1 << 20)
            if until is None and b"event: change" in text:
                first = text.index(b"event: change")
                until = time.monotonic() + seconds
    counted.append((first, len(text) - first, text.count(b"event: change")))


def clients(address, agent, count, seconds):
    """Returns the use of the agent with a number of clients."""
    counted, before = [], thread_cpu_seconds(agent.pid, "http")
    begin = time.monotonic()
    threads = [threading.Thread(target=read_stream, args=(address, seconds, counted)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - begin
    used = thread_cpu_seconds(agent.pid, "http") - before
    first, rest, events = (statistics.median(column) for column in zip(*counted))
    return {"clients": count, "whole_kb": first / 1e3, "kb_per_s": rest / seconds / 1e3, "events_per_s": events / seconds,
            "cpu_percent": 100 * used / elapsed}


def frames(address, seconds):
    """Returns frame times of the page in Chromium, in milliseconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"http://{address}/")
        page.wait_for_selector("html[data-ready=true]", timeout=120_000)
        page.wait_for_timeout(3000)
        measured = page.evaluate(FRAMES, seconds)
        # The time that the script takes for an event, without drawing.
        browser.close()
    steps = [after - before for before, after in zip(measured["times"], measured["times"][1:])]
    steps.sort()
    return {"frames_per_s": len(steps) / seconds, "median_ms": statistics.median(steps),
            "p99_ms": steps[int(len(steps) * 0.99)], "max_ms": steps[-1], "long_tasks": len(measured["long"]),
            "longest_task_ms": max(measured["long"], default=0)}


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--sites", type=int, default=20, help="sites per process")
    parser.add_argument("--period-ms", type=int, default=5000, help="time between two changes of a process")
    parser.add_argument("--seconds", type=int, default=30, help="length of each measurement")
    options = parser.parse_args()
    kill_children_at_exit()
    setup = Setup(options)
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "sites")
        subprocess.run(["gcc", "-g", "-O0", "-o", program, os.path.join(HERE, "sites.c"), "-ldl"], check=True)
        environment = setup.environment(SIM_ORACLE_DIR=directory)
        agent = start([setup.vramscope, "serve", "--listen", "127.0.0.1:0", "--state-dir", os.path.join(directory, "state"),
                       "--driver", setup.driver_file, "--max-cpu", "100"], stderr=subprocess.PIPE, text=True)
        lines = Lines(agent.stderr)
        address = re.search(r"://(\S+)", lines.wait_for(lambda line: "listening on" in line, 60, "the agent")).group(1)
        wait_attached(lines)
        for number in range(options.processes):
            start([program, number * options.sites, options.sites, options.period_ms], env=environment)
            time.sleep(0.02)

        def get(path):
            with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=60) as response:
                return json.load(response)

        for _ in range(300):
            counts = get("view/processes?limit=1")["total"], get("view/sites?limit=1")["total"]
            if counts[0] >= options.processes and counts[1] >= options.processes * options.sites:
                break
            time.sleep(1)
        status = get("status")
        print(f"{counts[0]} processes, {counts[1]} sites; agent {status['cpu_percent']:.1f} % of a core, {status['memory_bytes'] >> 20} MiB")
        for count in (0, 1, 8):
            if count == 0:
                before = thread_cpu_seconds(agent.pid, "http")
                time.sleep(options.seconds)
                print(f"no client: http thread {100 * (thread_cpu_seconds(agent.pid, 'http') - before) / options.seconds:.2f} % of a core")
                continue
            print(json.dumps(clients(address, agent, count, options.seconds)), flush=True)
        print(json.dumps(frames(address, options.seconds)))
        stop(agent, signal.SIGTERM)


if __name__ == "__main__":
    main()
