#!/usr/bin/env python3
"""Sends metrics by OTLP to VictoriaMetrics, which also scrapes the agents, and compares both.

usage: otlp.py --vramscope PATH --sim DIR [--store victoria-metrics] [--collector PATH]

Needs root. VictoriaMetrics is Debian's package victoria-metrics (1.92 or newer). With `--collector`, one of the two hosts
sends through an OpenTelemetry Collector; collector.go is a minimal one.
"""
import argparse
import functools
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.parse

from hosts import LOOPBACK, Checks, Host, fetch, free_port, wait

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations" / "exporters.md"
COLLECTOR = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: basic}}, otlp_http: {{endpoint: "{store}"}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{metrics: {{receivers: [otlp], exporters: [debug, otlp_http]}}}}
"""
# Attributes that Prometheus-compatible stores rename: the label in /metrics, and the one in the store.
LABELS = {"pid": "process_pid", "process": "process_executable_name", "uuid": "hw_id", "gpu": "hw_name"}
# Fields of the API, and of the oracle.
VALUES = {"live_bytes": "live_bytes", "peak_bytes": "peak_bytes", "allocations_total": "allocations", "frees_total": "frees"}
# Labels that the scraper adds, labels of the resource, and metrics that change with every request.
ADDED = {"__name__", "job", "instance", "node"}
RESOURCE = {"__name__", "service_name", "service_version", "service_instance_id", "host_name", "hw_type", "hw_vendor", "hw_model",
            "k8s_cluster_name"}
CHANGING = {"process_cpu_seconds_total", "process_resident_memory_bytes", "vramscope_http_requests_total",
          "vramscope_exports_total", "vramscope_events_total"}
# Metrics of the agent's own process: the OTLP name, and the one in the store.
OWN = {"process.start_time": "process_start_time_seconds", "process.cpu.time": "process_cpu_time_seconds_total",
       "process.memory.usage": "process_memory_usage_bytes"}


def mapping():
    """Returns the mapping of the page: the name in `/metrics`, the name in OpenTelemetry, and the kind."""
    part = PAGE.read_text().split("<!-- mapping -->")[1].split("<!-- end -->")[0]
    return re.findall(r"^\| `((?:vramscope|process)_\w+)` \| `([\w.]+)` \|.*\| ([\w, :-]+) \|$", part, re.MULTILINE)


class Store:
    """VictoriaMetrics, which receives OTLP and scrapes the agents."""

    def __init__(self, program, directory, ports):
        self.port = free_port()
        targets = ", ".join(f'{{targets: ["127.0.0.1:{port}"], labels: {{node: "{name}"}}}}' for name, port in ports.items())
        scrape = directory / "scrape.yml"
        scrape.write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs:\n- {{job_name: scraped, static_configs: [{targets}]}}\n")
        with open(directory / "store.log", "w") as log:
            self.child = subprocess.Popen(
                [program, f"-storageDataPath={directory}/store", f"-httpListenAddr=127.0.0.1:{self.port}",
                 "-search.latencyOffset=0s", "-opentelemetry.usePrometheusNaming", f"-promscrape.config={scrape}"],
                stdout=log, stderr=log)
        wait("the store", lambda: fetch(self.url("/health")))

    def url(self, path):
        return f"{LOOPBACK}:{self.port}{path}"

    def query(self, query):
        response = json.loads(fetch(self.url("/api/v1/query?query=" + urllib.parse.quote(query))))
        return [(series["metric"], float(series["value"][1])) for series in response["data"]["result"]]


def different_series(scraped, sent):
    """Returns the series that are not equal both ways, by the label names of the page."""
    def key(labels, value):
        kept = {LABELS.get(name, f"vramscope_{name}"): text for name, text in labels.items() if name not in ADDED}
        # The series of all other processes has no pid in OpenTelemetry.
        if kept.get("process_pid") == "other":
            del kept["process_pid"]
        if "hw_name" in kept:
            kept["hw_name"] = f"gpu{kept['hw_name']}"
        return json.dumps(kept, sort_keys=True), value
    # The series of unresolved sites are short-lived: a scraper sees them end, but sent ones stay for minutes.
    ours = {key(labels, value) for labels, value in scraped if labels.get("site") != "pending"}
    theirs = {(json.dumps({name: text for name, text in labels.items() if name not in RESOURCE}, sort_keys=True), value)
              for labels, value in sent if labels.get("vramscope_site") != "pending"}
    return ours ^ theirs


def compare(store, host, pids):
    """Returns the number of metrics and of series that arrived both ways, and the metrics that differ."""
    names, series, different = 0, 0, []
    for ours, theirs, kind in mapping():
        own = f'{ours}{{job="scraped", node="{host.name}"}}'
        scraped = [row for row in store.query(own) if row[0].get("pid") in (None, "other", *pids)]
        if not scraped or kind == "attribute":
            continue
        suffix = "_ratio" if kind.endswith("limit") else "_bytes"
        name = ours if theirs.startswith("vramscope.") else OWN.get(theirs, theirs.replace(".", "_") + suffix)
        sent = store.query(f'{name}{{service_name="vramscope", host_name="{host.name}", k8s_cluster_name="lab"}}')
        sent = [row for row in sent if row[0].get("process_pid") in (None, *pids)]
        names, series = names + 1, series + len(sent)
        if not sent:
            different.append((name, "was not sent"))
        elif ours not in CHANGING and suffix not in ("_ratio",) and different_series(scraped, sent):
            different.append((name, sorted(different_series(scraped, sent))))
    return names, series, different


def compare_with_retries(store, host, pids, checks):
    """Compares both ways. Scraping and sending are a second apart, and other programs may allocate in between."""
    for _ in range(10):
        names, series, different = compare(store, host, pids)
        if not different:
            break
        time.sleep(1)
    checks.equal(f"{host.name}: metrics that differ", different, [])
    checks.equal(f"{host.name}: {series} series of {names} metrics, at least 35", names >= 35, True)


def stored(store, host, pid, metric):
    rows = store.query(f'vramscope_process_{metric}{{host_name="{host.name}", process_pid="{pid}"}}')
    return int(sum(value for _, value in rows))


def config(endpoint):
    return f'[exporters.otlp]\nendpoint = "{endpoint}"\ninterval = "1s"\nresource_attributes = {{ "k8s.cluster.name" = "lab" }}\n'


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--store", default="victoria-metrics")
    parser.add_argument("--collector")
    options = parser.parse_args()
    checks, children = Checks(), []
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        ports = {"node-1": free_port(), "node-2": free_port()}
        store = Store(options.store, directory, ports)
        children.append(store.child)
        direct = store.url("/opentelemetry")
        endpoints = {"node-1": direct, "node-2": direct}
        if options.collector:
            port = free_port()
            (directory / "collector.yml").write_text(COLLECTOR.format(port=port, store=direct))
            with open(directory / "collector.log", "w") as log:
                children.append(subprocess.Popen([options.collector, "--config", f"file:{directory}/collector.yml"], stdout=log, stderr=log))
            endpoints["node-2"] = f"{LOOPBACK}:{port}"
        hosts = [Host(name, directory, options.vramscope, options.sim, config(endpoints[name]), ports[name]) for name in ports]
        try:
            pids = {host.name: [host.start("train", "--steps", "40", "--step-ms", "2"), host.start("kinds")] for host in hosts}
            for host in hosts:
                for pid in pids[host.name]:
                    host.settle(pid)
                wait("the sent metrics", functools.partial(stored, store, host, pids[host.name][1], "peak_bytes"))
                compare_with_retries(store, host, [str(pid) for pid in pids[host.name]], checks)
            for host in hosts:
                values = {pid: {ours: stored(store, host, pid, ours) for ours in VALUES} for pid in pids[host.name]}
                for pid, oracle in host.end_programs().items():
                    expected = {ours: oracle[theirs] for ours, theirs in VALUES.items()}
                    checks.equal(f"{host.name}: oracle of a process", values[pid], expected)
                failed = store.query(f'vramscope_exports_total{{host_name="{host.name}", vramscope_outcome="failed"}}')
                checks.equal(f"{host.name}: failed deliveries", sum(value for _, value in failed), 0)
                errors = [line for line in host.end().splitlines() if "cannot send" in line]
                checks.equal(f"{host.name}: errors in the log", errors, [])
        finally:
            for host in hosts:
                host.agent.kill()
                for program in host.programs:
                    program.kill()
            for child in children:
                child.terminate()
                child.wait()
    checks.end()


main()
