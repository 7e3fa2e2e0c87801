#!/usr/bin/env python3
"""Measures the agent under HTTP load: requests per second, latency, lost events, and the cost of a traced call.

usage: http_load.py [--seconds 8] [--rounds 5] [--quick] [--results FILE] …

`vramscope serve` traces a program that makes 4,000 allocations and frees per second, while `wrk` requests /metrics and
a snapshot over 64 connections, and other clients never finish their request or never read the response. The cost of a
call is measured with pairs of allocation and free of another program, alternating without and with the load. On a
machine with few cores the clients themselves take CPU time. To separate their share, the same clients also send their
requests to an agent that does not trace this program. Needs root and wrk.
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
sys.path.insert(1, os.path.dirname(HERE))

from lib import machine, results
from lib.paths import Setup, argument_parser
from lib.processes import Lines, Usage, kill_children_at_exit, start, stop, thread_cpu_seconds, wait_attached

CONNECTIONS = 64
SLOW_CLIENTS = 16
RATE = 4000
PAIRS = 60_000
PATHS = ("/metrics", "/api/v1/snapshot")


def start_agent(setup, directory, driver):
    """Starts an agent and returns it with its address."""
    process = start([setup.vramscope, "serve", "--listen", "127.0.0.1:0", "--state-dir", os.path.join(directory, "state"),
                     "--driver", driver], stderr=subprocess.PIPE, text=True)
    lines = Lines(process.stderr)
    listening = lines.wait_for(lambda line: "listening on" in line, 60, "the agent")
    wait_attached(lines)
    address = re.search(r"://(\S+)", listening).group(1)
    wait_ready(address)
    return process, address


def wait_ready(address):
    for _ in range(200):
        try:
            return get(address, "/readyz")
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the agent did not become ready")


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as response:
        return response.read().decode()


def metric(text, name, *parts):
    """Returns the sum of a metric's samples."""
    lines = (line for line in text.splitlines() if re.match(re.escape(name) + r"[{ ]", line))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(part in line for part in parts))


def slow_clients(address):
    """Connects clients: half of them never finish their request, half never read the response."""
    host, port = address.rsplit(":", 1)
    connected = []
    for number in range(SLOW_CLIENTS):
        client = socket.create_connection((host, int(port)), timeout=30)
        request = b"GET /api/v1/snapshot HTTP/1.1\r\nhost: localhost\r\n\r\n"
        client.sendall(request if number % 2 else request[:20])
        connected.append(client)
    return connected


def wrk(address, path, seconds):
    return start(["wrk", "-c", CONNECTIONS // 2, "-t", 1, "-d", f"{seconds}s", "--latency",
                  f"http://{address}{path}"], stdout=subprocess.PIPE, text=True)


def wrk_results(process):
    """Returns requests per second, latencies in milliseconds, and the number of error responses."""
    text = process.communicate(timeout=120)[0]
    units = {"us": 1e-3, "ms": 1.0, "s": 1e3}

    def latency(percent):
        found = re.search(rf"^\s*{percent}%\s+([\d.]+)(us|ms|s)$", text, re.MULTILINE)
        return float(found.group(1)) * units[found.group(2)]

    errors = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return {"requests_per_s": float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1)),
            "median_ms": latency(50), "p99_ms": latency(99), "errors": int(errors.group(1)) if errors else 0}


def pairs(setup):
    """Returns the nanoseconds of an allocation and its free: elapsed time and CPU time."""
    done = subprocess.run([setup.tool("pairs"), "10", str(PAIRS)], env=setup.environment(), capture_output=True,
                          text=True, timeout=120, check=True)
    return tuple(map(float, re.search(r"([\d.]+) ns per pair, ([\d.]+) of", done.stdout).groups()))


@contextlib.contextmanager
def clients(address):
    """Runs all clients while something is measured; none without an address."""
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


def cost(setup, addresses, rounds):
    """Returns the cost of a pair by the agent that the clients load.

    The agents alternate, each round in another order, so that drift affects all of them.
    """
    taken = {name: [] for name in addresses}
    names = list(addresses)
    program = start([setup.workload, "spam", "--throughput", RATE, "--duration", 3600], env=setup.environment(),
                    stdout=subprocess.DEVNULL)
    for number in range(rounds):
        for name in names[number % len(names):] + names[:number % len(names)]:
            with clients(addresses[name]):
                taken[name].append(pairs(setup))
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


def under_load(setup, address, agent, seconds, directory):
    """Traces a program while the agent is under load; the received events must equal those of the oracle."""
    oracle_dir = os.path.join(directory, "oracle")
    os.makedirs(oracle_dir)
    slow = slow_clients(address)
    before = get(address, "/metrics")
    program = start([setup.workload, "--hold-ms", 3000, "spam", "--throughput", RATE, "--duration", seconds],
                    env=setup.environment(SIM_ORACLE_DIR=oracle_dir), stdout=subprocess.DEVNULL)
    usage, responding = Usage(agent.pid), thread_cpu_seconds(agent.pid, "http")
    load = [wrk(address, path, seconds - 1) for path in PATHS]
    parts = [wrk_results(process) for process in load]
    used, responding = usage.so_far(), thread_cpu_seconds(agent.pid, "http") - responding
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
           "errors": sum(part["errors"] for part in parts), "connections": CONNECTIONS, "slow_clients": SLOW_CLIENTS,
           "target_rate": RATE, "lost": int(lost), "agent_cpu_percent": 100 * used["cpu_s"] / used["seconds"],
           "answering_percent": 100 * responding / used["seconds"],
           "received": int(metric(last, "vramscope_process_allocations_total", label)
                           + metric(last, "vramscope_process_frees_total", label))}
    if setup.simulated:
        with open(os.path.join(oracle_dir, f"{program.pid}.json")) as file:
            oracle = json.load(file)
        row["truth"] = oracle["allocations"] + oracle["frees"]
    return row


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=int, default=8, help="length of the load")
    parser.add_argument("--rounds", type=int, default=40, help="measurements of the cost of a call")
    parser.add_argument("--quick", action="store_true", help="4 seconds, 2 rounds")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 4, 2
    if not shutil.which("wrk"):
        raise SystemExit("wrk not found: install the package wrk")
    kill_children_at_exit()
    setup = Setup(options)
    facts = machine.measurement_facts(setup.vramscope)
    facts["driver"] = "simulated" if setup.simulated else "real"
    with tempfile.TemporaryDirectory() as directory:
        agent, address = start_agent(setup, directory, setup.driver_file)
        row = under_load(setup, address, agent, options.seconds, directory)
        addresses = {"none": None}
        if setup.simulated:
            other, other_address = start_agent(setup, os.path.join(directory, "other"), setup.other_driver())
            addresses["an agent that does not trace it"] = other_address
        addresses["the agent that traces it"] = address
        row["rounds"], row["pairs"], row["cost"] = options.rounds, PAIRS, cost(setup, addresses, options.rounds)
        lost = metric(get(address, "/metrics"), "vramscope_lost_events_total")
        stop(agent, signal.SIGTERM)
        if setup.simulated:
            stop(other, signal.SIGTERM)
    row["lost_at_full_speed"] = int(lost) - row["lost"]
    print("| requests/s | median ms | p99 ms | agent CPU | for responses | events | lost |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    print(f"| {row['requests_per_s']:.0f} | {row['median_ms']:.1f} | {row['p99_ms']:.1f} | {row['agent_cpu_percent']:.1f} % | {row['answering_percent']:.1f} % "
          f"| {row['received']:,} | {row['lost']} |\n")
    print("| request load on | ns per pair, median | ratio | minimum | ratio | on a processor | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for one in row["cost"]:
        print(f"| {one['load_on']} | {one['median_ns']:.0f} | {one['median_ratio']:.3f} | {one['least_ns']:.0f} "
              f"| {one['least_ratio']:.3f} | {one['processor_ns']:.0f} | {one['processor_ratio']:.3f} |", flush=True)
    print(f"\nLost in the second table, where calls follow each other without a pause: {row['lost_at_full_speed']:,}")
    if options.results:
        results.store(options.results, options.machine, "load", row, facts)
    if row["lost"] or row["errors"] or row.get("truth", row["received"]) != row["received"]:
        raise SystemExit(f"events were lost, or requests failed: {row}")


if __name__ == "__main__":
    main()
