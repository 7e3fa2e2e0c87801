#!/usr/bin/env python3
"""What a load of requests does to the agent: requests a second, their latency, events lost, and what a call costs
the traced program meanwhile.

usage: scraped.py [--seconds 8] [--rounds 5] [--quick] [--results FILE] …

`vramscope serve` traces a program that allocates and frees 4,000 times a second, while `wrk` asks for /metrics and
for a snapshot over 64 connections, and other clients begin requests or answers without ever finishing them. The cost
of a call is that of pairs of allocation and free of another program, without and with the load by turns. On a machine
with few cores the clients take processor time themselves: the same clients that ask another agent, one that does not
trace this program, show how much of a difference is theirs. Needs root, and wrk.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from bench import results  # noqa: E402
from bench.place import Place, options  # noqa: E402
from bench.processes import Lines, Usage, end_well, start, stop, thread_seconds  # noqa: E402

CONNECTIONS = 64
SLOW = 16
RATE = 4000
PAIRS = 60_000
PATHS = ("/metrics", "/api/v1/snapshot")


def agent(place, folder, driver):
    """An agent, and where it answers."""
    process = start([place.vramscope, "serve", "--listen", "127.0.0.1:0", "--state-dir", os.path.join(folder, "state"),
                     "--driver", driver], stderr=subprocess.PIPE, text=True)
    lines = Lines(process.stderr)
    said = lines.wait_for(lambda line: "listening on" in line, 60, "the agent")
    lines.wait_for(lambda line: "attached to" in line, 60, "the agent's probes")
    address = re.search(r"://(\S+)", said).group(1)
    wait_ready(address)
    return process, address


def wait_ready(address):
    for _ in range(200):
        try:
            return get(address, "/readyz")
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the agent does not become ready")


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return answer.read().decode()


def metric(text, name, *parts):
    """The sum of a metric's samples."""
    lines = (line for line in text.splitlines() if re.match(re.escape(name) + r"[{ ]", line))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(part in line for part in parts))


def slow_clients(address):
    """Half of them never finish their request, half never take their answer."""
    host, port = address.rsplit(":", 1)
    connected = []
    for number in range(SLOW):
        client = socket.create_connection((host, int(port)), timeout=30)
        request = b"GET /api/v1/snapshot HTTP/1.1\r\nhost: localhost\r\n\r\n"
        client.sendall(request if number % 2 else request[:20])
        connected.append(client)
    return connected


def wrk(address, path, seconds):
    return start(["wrk", "-c", CONNECTIONS // 2, "-t", 1, "-d", f"{seconds}s", "--latency",
                  f"http://{address}{path}"], stdout=subprocess.PIPE, text=True)


def told_by(process):
    """Requests a second, latencies in milliseconds, answers that were errors."""
    text = process.communicate(timeout=120)[0]
    units = {"us": 1e-3, "ms": 1.0, "s": 1e3}

    def latency(percent):
        found = re.search(rf"^\s*{percent}%\s+([\d.]+)(us|ms|s)$", text, re.M)
        return float(found.group(1)) * units[found.group(2)]

    errors = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return {"requests_per_s": float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1)),
            "median_ms": latency(50), "p99_ms": latency(99), "errors": int(errors.group(1)) if errors else 0}


def pairs(place):
    """Nanoseconds of an allocation and its free: as time passes, and on a processor."""
    done = subprocess.run([place.tool("pairs"), "10", str(PAIRS)], env=place.environment(), capture_output=True,
                          text=True, timeout=120, check=True)
    return tuple(map(float, re.search(r"([\d.]+) ns per pair, ([\d.]+) of", done.stdout).groups()))


@contextlib.contextmanager
def clients(address):
    """Everybody who asks, for as long as something is measured; nobody without an address."""
    if not address:
        yield
        return
    slow = slow_clients(address)
    load = [wrk(address, path, 60) for path in PATHS]
    time.sleep(0.5)
    yield
    for process in load:
        stop(process)
    for client in slow:
        client.close()


def cost(place, asked, rounds):
    """Pairs by whom the clients ask, by turns and each time in another order: what drifts hits all."""
    taken = {name: [] for name in asked}
    names = list(asked)
    program = start([place.workload, "spam", "--throughput", RATE, "--duration", 3600], env=place.environment(),
                    stdout=subprocess.DEVNULL)
    for turn in range(rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            with clients(asked[name]):
                taken[name].append(pairs(place))
    stop(program, signal.SIGKILL)
    rows = []
    for name, times in taken.items():
        wall, processor = zip(*times)
        rows.append({"load_on": name, "median_ns": statistics.median(wall), "least_ns": min(wall),
                     "processor_ns": statistics.median(processor)})
    for row in rows:
        row["median_ratio"] = row["median_ns"] / rows[0]["median_ns"]
        row["least_ratio"] = row["least_ns"] / rows[0]["least_ns"]
        row["processor_ratio"] = row["processor_ns"] / rows[0]["processor_ns"]
    return rows


def under_load(place, address, watch, seconds, folder):
    """Whether everything that a program does is seen while the agent is asked all the time."""
    ledger = os.path.join(folder, "ledger")
    os.makedirs(ledger)
    slow = slow_clients(address)
    before = get(address, "/metrics")
    program = start([place.workload, "--hold-ms", 3000, "spam", "--throughput", RATE, "--duration", seconds],
                    env=place.environment(SIM_ORACLE_DIR=ledger), stdout=subprocess.DEVNULL)
    usage, answering = Usage(watch.pid), thread_seconds(watch.pid, "http")
    load = [wrk(address, path, seconds - 1) for path in PATHS]
    parts = [told_by(process) for process in load]
    used, answering = usage.so_far(), thread_seconds(watch.pid, "http") - answering
    label, last = f'pid="{program.pid}"', None
    while program.poll() is None:
        text = get(address, "/metrics")
        if label in text:
            last = text
        time.sleep(0.2)
    for client in slow:
        client.close()
    lost = metric(last, "vramscope_lost_events_total") - metric(before, "vramscope_lost_events_total")
    row = {"requests_per_s": sum(part["requests_per_s"] for part in parts),
           "median_ms": max(part["median_ms"] for part in parts), "p99_ms": max(part["p99_ms"] for part in parts),
           "errors": sum(part["errors"] for part in parts), "connections": CONNECTIONS, "slow_clients": SLOW,
           "asked_rate": RATE, "lost": int(lost), "agent_cpu_percent": 100 * used["cpu_s"] / used["seconds"],
           "answering_percent": 100 * answering / used["seconds"],
           "received": int(metric(last, "vramscope_process_allocations_total", label)
                           + metric(last, "vramscope_process_frees_total", label))}
    if place.simulated:
        with open(os.path.join(ledger, f"{program.pid}.json")) as file:
            truth = json.load(file)
        row["truth"] = truth["allocations"] + truth["frees"]
    return row


def main():
    parser = options(__doc__)
    parser.add_argument("--seconds", type=int, default=8, help="how long the load is")
    parser.add_argument("--rounds", type=int, default=40, help="measurements of a call's cost")
    parser.add_argument("--quick", action="store_true", help="four seconds, two rounds")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seconds, chosen.rounds = 4, 2
    if not shutil.which("wrk"):
        raise SystemExit("wrk is needed: install the package of that name")
    end_well()
    place = Place(chosen)
    about = results.facts(place.vramscope)
    about["driver"] = "simulated" if place.simulated else "real"
    with tempfile.TemporaryDirectory() as folder:
        watch, address = agent(place, folder, place.driver_file)
        row = under_load(place, address, watch, chosen.seconds, folder)
        asked = {"none": None}
        if place.simulated:
            other, asked["an agent that does not trace it"] = agent(place, os.path.join(folder, "other"), place.other_driver())
        asked["the agent that traces it"] = address
        row["rounds"], row["pairs"], row["cost"] = chosen.rounds, PAIRS, cost(place, asked, chosen.rounds)
        lost = metric(get(address, "/metrics"), "vramscope_lost_events_total")
        stop(watch, signal.SIGTERM)
        if place.simulated:
            stop(other, signal.SIGTERM)
    row["lost"] = max(row["lost"], int(lost))
    print("| requests/s | median ms | p99 ms | agent's CPU | for answers | events | lost |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    print(f"| {row['requests_per_s']:.0f} | {row['median_ms']:.1f} | {row['p99_ms']:.1f} | {row['agent_cpu_percent']:.1f} % | {row['answering_percent']:.1f} % "
          f"| {row['received']:,} | {row['lost']} |\n")
    print("| request load on | ns per pair, median | ratio | minimum | ratio | on a processor | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for one in row["cost"]:
        print(f"| {one['load_on']} | {one['median_ns']:.0f} | {one['median_ratio']:.3f} | {one['least_ns']:.0f} "
              f"| {one['least_ratio']:.3f} | {one['processor_ns']:.0f} | {one['processor_ratio']:.3f} |", flush=True)
    if chosen.results:
        results.keep(chosen.results, chosen.machine, "load", row, about)
    if row["lost"] or row["errors"] or row.get("truth", row["received"]) != row["received"]:
        raise SystemExit(f"not as it should be: {row}")


if __name__ == "__main__":
    main()
