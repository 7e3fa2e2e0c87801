#!/usr/bin/env python3
"""Sends metrics by OTLP to VictoriaMetrics, which scrapes the agents besides, and compares what it has of both.

usage: otlp.py --vramscope PATH --sim FOLDER [--store victoria-metrics] [--collector PATH]

Needs root. VictoriaMetrics is Debian's package victoria-metrics (1.92 or newer). With `--collector`, one of the two hosts
sends through a collector of OpenTelemetry; collector.go makes one.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.parse

from hosts import LOOPBACK, Host, Verdict, fetch, free_port, wait

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations" / "exporters.md"
COLLECTOR = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: basic}}, otlp_http: {{endpoint: "{store}"}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{metrics: {{receivers: [otlp], exporters: [debug, otlp_http]}}}}
"""
# What a store of Prometheus makes of an attribute.
LABELS = {"pid": "process_pid", "process": "process_executable_name", "uuid": "hw_id", "gpu": "hw_name"}
# What the scraper adds, what the resource and the conventions add, and what changes with every question.
FIGURES = {"live_bytes": "live_bytes", "peak_bytes": "peak_bytes", "allocations_total": "allocations", "frees_total": "frees"}
ADDED = {"__name__", "job", "instance", "node"}
RESOURCE = {"__name__", "service_name", "service_version", "service_instance_id", "host_name", "hw_type", "hw_vendor", "hw_model",
            "k8s_cluster_name"}
MOVING = {"process_cpu_seconds_total", "process_resident_memory_bytes", "vramscope_http_requests_total",
          "vramscope_exports_total", "vramscope_events_total"}
# What a store of Prometheus makes of the names of the agent's own process.
OWN = {"process.start_time": "process_start_time_seconds", "process.cpu.time": "process_cpu_time_seconds_total",
       "process.memory.usage": "process_memory_usage_bytes"}


def mapping():
    """Metrics as the page maps them: the name in `/metrics`, and the name in OpenTelemetry."""
    part = PAGE.read_text().split("<!-- mapping -->")[1].split("<!-- end -->")[0]
    return re.findall(r"^\| `((?:vramscope|process)_\w+)` \| `([\w.]+)` \|.*\| ([\w, :-]+) \|$", part, re.M)


class Store:
    """VictoriaMetrics: takes OTLP, and scrapes."""

    def __init__(self, program, folder, ports):
        self.port = free_port()
        targets = ", ".join(f'{{targets: ["127.0.0.1:{port}"], labels: {{node: "{name}"}}}}' for name, port in ports.items())
        scrape = folder / "scrape.yml"
        scrape.write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs:\n- {{job_name: scraped, static_configs: [{targets}]}}\n")
        self.log = open(folder / "store.log", "w")
        self.child = subprocess.Popen(
            [program, f"-storageDataPath={folder}/store", f"-httpListenAddr=127.0.0.1:{self.port}", "-search.latencyOffset=0s",
             "-opentelemetry.usePrometheusNaming", f"-promscrape.config={scrape}"], stdout=self.log, stderr=self.log)
        wait("the store", lambda: fetch(self.url("/health")))

    def url(self, path):
        return f"{LOOPBACK}:{self.port}{path}"

    def ask(self, question):
        answer = json.loads(fetch(self.url("/api/v1/query?query=" + urllib.parse.quote(question))))
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]


def same_series(scraped, sent):
    """Both ways as sets of labels and value, by the names of labels that the page tells."""
    def key(labels, value):
        kept = {LABELS.get(name, f"vramscope_{name}"): text for name, text in labels.items() if name not in ADDED}
        # What stands for all others has no number in OpenTelemetry.
        if kept.get("process_pid") == "other":
            del kept["process_pid"]
        if "hw_name" in kept:
            kept["hw_name"] = f"gpu{kept['hw_name']}"
        return json.dumps(kept, sort_keys=True), value
    # A site without a name is there for a moment. A scraper sees it end; what was sent stays for minutes.
    ours = {key(labels, value) for labels, value in scraped if labels.get("site") != "pending"}
    theirs = {(json.dumps({name: text for name, text in labels.items() if name not in RESOURCE}, sort_keys=True), value)
              for labels, value in sent if labels.get("vramscope_site") != "pending"}
    return ours ^ theirs


def compare(store, host, pids):
    """How many metrics came both ways, how many series, and which of them differ."""
    names, series, differ = 0, 0, []
    for ours, theirs, kind in mapping():
        own = f'{ours}{{job="scraped", node="{host.name}"}}'
        scraped = [row for row in store.ask(own) if row[0].get("pid") in (None, "other", *pids)]
        if not scraped or kind == "attribute":
            continue
        suffix = "_ratio" if kind.endswith("limit") else "_bytes"
        name = ours if theirs.startswith("vramscope.") else OWN.get(theirs, theirs.replace(".", "_") + suffix)
        sent = store.ask(f'{name}{{service_name="vramscope", host_name="{host.name}", k8s_cluster_name="lab"}}')
        sent = [row for row in sent if row[0].get("process_pid") in (None, *pids)]
        names, series = names + 1, series + len(sent)
        if not sent:
            differ.append((name, "was not sent"))
        elif ours not in MOVING and suffix not in ("_ratio",) and same_series(scraped, sent):
            differ.append((name, sorted(same_series(scraped, sent))))
    return names, series, differ


def compare_patiently(store, host, pids, verdict):
    """What is scraped and what is sent are a second apart: others of this machine may allocate in between."""
    for _ in range(10):
        names, series, differ = compare(store, host, pids)
        if not differ:
            break
        time.sleep(1)
    verdict.look(f"{host.name}: metrics that are not the same both ways", differ, [])
    verdict.look(f"{host.name}: {series} series of {names} metrics, which is most of them", names >= 35, True)


def stored(store, host, pid, metric):
    rows = store.ask(f'vramscope_process_{metric}{{host_name="{host.name}", process_pid="{pid}"}}')
    return int(sum(value for _, value in rows))


def settings(endpoint):
    return f'[exporters.otlp]\nendpoint = "{endpoint}"\ninterval = "1s"\nresource_attributes = {{ "k8s.cluster.name" = "lab" }}\n'


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope", required=True)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--store", default="victoria-metrics")
    parser.add_argument("--collector")
    options = parser.parse_args()
    verdict, children = Verdict(), []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        ports = {"node-1": free_port(), "node-2": free_port()}
        store = Store(options.store, folder, ports)
        children.append(store.child)
        direct = store.url("/opentelemetry")
        endpoints = {"node-1": direct, "node-2": direct}
        if options.collector:
            port = free_port()
            (folder / "collector.yml").write_text(COLLECTOR.format(port=port, store=direct))
            with open(folder / "collector.log", "w") as log:
                children.append(subprocess.Popen([options.collector, "--config", f"file:{folder}/collector.yml"], stdout=log, stderr=log))
            endpoints["node-2"] = f"{LOOPBACK}:{port}"
        hosts = [Host(name, folder, options.vramscope, options.sim, settings(endpoints[name]), ports[name]) for name in ports]
        try:
            pids = {host.name: [host.start("train", "--steps", "40", "--step-ms", "2"), host.start("kinds")] for host in hosts}
            for host in hosts:
                for pid in pids[host.name]:
                    host.settle(pid)
                wait("what was sent", lambda: stored(store, host, pids[host.name][1], "peak_bytes"))
                compare_patiently(store, host, [str(pid) for pid in pids[host.name]], verdict)
            for host in hosts:
                has = {pid: {ours: stored(store, host, pid, ours) for ours in FIGURES} for pid in pids[host.name]}
                for pid, oracle in host.end_players().items():
                    truth = {ours: oracle[theirs] for ours, theirs in FIGURES.items()}
                    verdict.look(f"{host.name}: the driver's own account of a process", has[pid], truth)
                told = store.ask(f'vramscope_exports_total{{host_name="{host.name}", vramscope_outcome="failed"}}')
                verdict.look(f"{host.name}: deliveries that failed", sum(value for _, value in told), 0)
                said = [line for line in host.end().splitlines() if "cannot send" in line]
                verdict.look(f"{host.name}: the agent complained", said, [])
        finally:
            for host in hosts:
                host.agent.kill()
                for player in host.players:
                    player.kill()
            for child in children:
                child.terminate()
                child.wait()
    verdict.end()


main()
