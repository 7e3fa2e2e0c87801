#!/usr/bin/env python3
"""What a load of requests does to the agent: requests a second, their latency, events lost, and what a call costs
the traced program meanwhile.

usage: load.py [--seconds 8] [--rounds 5] [--quick] [--results FILE] …

`vramscope serve` traces a program that allocates and frees 4,000 times a second, while `wrk` asks for /metrics and
for a snapshot over 64 connections, and other clients begin requests or answers without ever finishing them. The cost
of a call is that of pairs of allocation and free of another program, without and with the load by turns; on a machine
with few cores the programs that make the load take processor time themselves, so that the same load on a plain file
server of Python stands beside it. Needs root, and wrk.
"""
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
from bench.processes import Lines, Usage, end_well, start, stop  # noqa: E402

CONNECTIONS = 64
SLOW = 16
RATE = 4000
PAIRS = 20_000


def agent(place, folder):
    """The agent, and where it answers."""
    process = start([place.vramscope, "serve", "--listen", "127.0.0.1:0", "--state", os.path.join(folder, "state"),
                     *place.driver_option()], stderr=subprocess.PIPE, text=True)
    lines = Lines(process.stderr)
    said = lines.wait_for(lambda line: "listening on" in line, 60, "the agent")
    lines.wait_for(lambda line: "watching" in line, 60, "the agent's probes")
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
    clients = []
    for number in range(SLOW):
        client = socket.create_connection((host, int(port)), timeout=30)
        request = b"GET /api/v1/snapshot HTTP/1.1\r\nhost: localhost\r\n\r\n"
        client.sendall(request if number % 2 else request[:20])
        clients.append(client)
    return clients


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
    """Nanoseconds of an allocation and its free."""
    done = subprocess.run([place.tool("pairs"), "10", str(PAIRS)], env=place.environment(), capture_output=True,
                          text=True, timeout=120, check=True)
    return float(re.search(r"([\d.]+) ns per pair", done.stdout).group(1))


def cost(place, target, rounds):
    """The median of pairs without load, and with, by turns: what drifts hits both."""
    without, loaded = [], []
    for _ in range(rounds):
        without.append(pairs(place))
        load = [wrk(target, "/metrics", 3), wrk(target, "/api/v1/snapshot", 3)]
        time.sleep(0.5)
        loaded.append(pairs(place))
        for process in load:
            process.communicate(timeout=120)
    return statistics.median(without), statistics.median(loaded)


def other_server(folder):
    """A server that has nothing to do with tracing, with files as long as the agent's answers."""
    script = ("import functools, http.server\n"
              "class Quiet(http.server.SimpleHTTPRequestHandler):\n"
              "    protocol_version = 'HTTP/1.1'\n"
              "    def log_message(self, *_): pass\n"
              f"s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory={folder!r}))\n"
              "print(s.server_port, flush=True); s.serve_forever()\n")
    process = start([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process, f"127.0.0.1:{process.stdout.readline().strip()}"


def under_load(place, address, watch, seconds, folder):
    """Whether everything that a program does is seen while the agent is asked all the time."""
    ledger = os.path.join(folder, "ledger")
    os.makedirs(ledger)
    clients = slow_clients(address)
    before = get(address, "/metrics")
    program = start([place.workload, "--hold-ms", 3000, "spam", "--throughput", RATE, "--duration", seconds],
                    env=place.environment(SIM_LEDGER=ledger), stdout=subprocess.DEVNULL)
    usage = Usage(watch.pid)
    load = [wrk(address, "/metrics", seconds - 1), wrk(address, "/api/v1/snapshot", seconds - 1)]
    parts = [told_by(process) for process in load]
    used = usage.so_far()
    label, last = f'pid="{program.pid}"', None
    while program.poll() is None:
        text = get(address, "/metrics")
        if label in text:
            last = text
        time.sleep(0.2)
    for client in clients:
        client.close()
    lost = metric(last, "vramscope_lost_events_total") - metric(before, "vramscope_lost_events_total")
    row = {"requests_per_s": sum(part["requests_per_s"] for part in parts),
           "median_ms": max(part["median_ms"] for part in parts), "p99_ms": max(part["p99_ms"] for part in parts),
           "errors": sum(part["errors"] for part in parts), "connections": CONNECTIONS, "slow_clients": SLOW,
           "lost": int(lost), "agent_cpu_percent": 100 * used["cpu_s"] / used["seconds"],
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
    parser.add_argument("--rounds", type=int, default=5, help="measurements of a call's cost")
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
        watch, address = agent(place, folder)
        row = under_load(place, address, watch, chosen.seconds, folder)
        files = os.path.join(folder, "files")
        os.makedirs(os.path.join(files, "api/v1"))
        for path in ("metrics", "api/v1/snapshot"):
            with open(os.path.join(files, path), "w") as file:
                file.write(get(address, "/" + path))
        row["pair_ns"], row["pair_loaded_ns"] = cost(place, address, chosen.rounds)
        other, elsewhere = other_server(files)
        row["elsewhere_ns"], row["elsewhere_loaded_ns"] = cost(place, elsewhere, chosen.rounds)
        other.send_signal(signal.SIGTERM)
        stop(watch, signal.SIGTERM)
    row["ratio"] = row["pair_loaded_ns"] / row["pair_ns"]
    row["elsewhere_ratio"] = row["elsewhere_loaded_ns"] / row["elsewhere_ns"]
    print("| requests/s | median ms | p99 ms | events | lost | ns per pair | under load | ratio | load elsewhere |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    print(f"| {row['requests_per_s']:.0f} | {row['median_ms']:.1f} | {row['p99_ms']:.1f} | {row['received']:,} "
          f"| {row['lost']} | {row['pair_ns']:.0f} | {row['pair_loaded_ns']:.0f} | {row['ratio']:.2f} "
          f"| {row['elsewhere_ratio']:.2f} |", flush=True)
    if chosen.results:
        results.keep(chosen.results, chosen.machine, "load", row, about)
    if row["lost"] or row["errors"] or row.get("truth", row["received"]) != row["received"]:
        raise SystemExit(f"not as it should be: {row}")


if __name__ == "__main__":
    main()
