"""Metrics of many hosts in Prometheus and VictoriaMetrics: samples, memory, CPU time, rules, and each panel's query."""
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import hosts
from lib.paths import ROOT
from lib.processes import Usage, resident_bytes, start, stop

HERE = Path(__file__).resolve().parent
CONTRIB = Path(ROOT, "contrib")
DASHBOARDS = ("vramscope-fleet", "vramscope", "vramscope-process", "vramscope-site")
LOOPBACK = "http://127.0.0.1"
# As the chart does.
INTERVAL, TIMEOUT = 30, 25
# Share of targets that must respond before the measurement: a busy machine may miss some.
MIN_UP = 0.99
AGENTS_PORT, PROMETHEUS_PORT, VICTORIA_PORT, VMALERT_PORT = 19754, 19755, 19756, 19757
ROUNDS = 3


def config(directory, count, with_rules):
    """Writes the configuration of a scraper: every agent has its own path and the name of its host."""
    rules = [str(path) for path in sorted((CONTRIB / "prometheus").glob("*.rules.yml"))]
    targets = [{"targets": [f"127.0.0.1:{AGENTS_PORT}"], "labels": {"instance": hosts.name(number), "__metrics_path__": f"/{number}/metrics"}}
               for number in range(count)]
    job = {"job_name": "vramscope", "honor_labels": True, "static_configs": targets}
    text = {"global": {"scrape_interval": f"{INTERVAL}s", "scrape_timeout": f"{TIMEOUT}s"}, "scrape_configs": [job]}
    if with_rules:
        text["global"]["evaluation_interval"] = f"{INTERVAL}s"
        text["rule_files"] = rules
    path = directory / f"scrape-{with_rules}.yml"
    path.write_text(json.dumps(text))  # JSON is YAML.
    return path, rules


def get(port, path, **parameters):
    url = f"{LOOPBACK}:{port}{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=120) as response:
        return response.read().decode()


def query(port, expr, **parameters):
    path = "/api/v1/query_range" if "step" in parameters else "/api/v1/query"
    return json.loads(get(port, path, query=expr, **parameters))["data"]["result"]


def value(port, expr):
    """Returns the value of a query with one series, or 0."""
    found = query(port, expr)
    return float(found[0]["value"][1]) if found else 0.0


def own_metric(port, name):
    """Returns the sum of a metric of the server itself."""
    lines = (line for line in get(port, "/metrics").splitlines() if line.startswith((name + " ", name + "{")))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def wait(what, check, seconds=240):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if check():
                return
        except (OSError, urllib.error.URLError, KeyError):
            pass
        time.sleep(1)
    raise SystemExit(f"timeout: {what}")


def prometheus(directory, count):
    path, _ = config(directory, count, True)
    return [start(["prometheus", f"--config.file={path}", f"--storage.tsdb.path={directory}/prometheus",
                   f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}", "--log.level=error"],
                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)], PROMETHEUS_PORT


def victoria(directory, count):
    path, rules = config(directory, count, False)
    server = start(["victoria-metrics", f"-storageDataPath={directory}/victoria", f"-promscrape.config={path}",
                    f"-httpListenAddr=127.0.0.1:{VICTORIA_PORT}", "-retentionPeriod=1", "-search.latencyOffset=1s"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait("VictoriaMetrics", lambda: get(VICTORIA_PORT, "/health"))
    url = f"{LOOPBACK}:{VICTORIA_PORT}"
    # Alerts go nowhere.
    rule = start(["vmalert", *(f"-rule={path}" for path in rules), f"-datasource.url={url}", f"-remoteWrite.url={url}",
                  f"-notifier.url={LOOPBACK}:1", f"-evaluationInterval={INTERVAL}s", f"-httpListenAddr=127.0.0.1:{VMALERT_PORT}"],
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [server, rule], VICTORIA_PORT


def replaced(expr, chosen):
    """Returns the expression of a panel with the values of its variables."""
    for name in ("instance", "pid", "site"):
        expr = expr.replace(f"${name}", chosen[name])
    for name in ("job", "gpu", "program", "user", "pod"):
        expr = expr.replace(f"${name}", ".*")
    return expr.replace("$__rate_interval", "1m")


def choose(port):
    """Returns the host, the process and the site of the fastest leak, as a reader of the dashboards would follow it."""
    labels = query(port, "topk(1, vramscope_suspect_growth_bytes_per_second)")[0]["metric"]
    return {name: labels[name] for name in ("instance", "pid", "site")}


def panels(port, server, chosen, begin):
    """Returns elapsed and CPU time of each panel's queries in milliseconds. An error ends the measurement.

    The CPU time includes what the server does besides.
    """
    found = []
    for name in DASHBOARDS:
        for panel in json.loads((CONTRIB / "grafana" / f"{name}.json").read_text())["panels"]:
            if not panel.get("targets"):
                continue
            times, usage = [], Usage(server)
            for _ in range(ROUNDS):
                started = time.monotonic()
                now = time.time()
                for target in panel["targets"]:
                    window = {} if target.get("instant") else {"start": begin, "end": now, "step": INTERVAL}
                    query(port, replaced(target["expr"], chosen), **window)
                times.append((time.monotonic() - started) * 1000)
            found.append({"dashboard": name, "panel": panel["title"], "ms": statistics.median(times),
                          "cpu_ms": 1000 * usage.so_far()["cpu_s"] / ROUNDS})
    return found


def measure_store(label, processes, port, directory, count, options, report):
    """Scrapes for a while, and returns the use of the store."""
    server = processes[0]
    wait(f"all targets of {label}", lambda: value(port, 'count(up{job="vramscope"} == 1)') >= MIN_UP * count)
    samples = {"prometheus": "prometheus_tsdb_head_samples_appended_total", "victoria-metrics": "vm_rows_inserted_total"}[label]
    series = {"prometheus": "prometheus_tsdb_head_series", "victoria-metrics": 'vm_cache_entries{type="storage/tsid"}'}[label]
    usage, before, begin, at = Usage(server.pid), own_metric(port, samples), time.time(), time.monotonic()
    peak = 0
    while time.monotonic() < at + options.seconds:
        time.sleep(1)
        peak = max(peak, resident_bytes(server.pid))
    seconds = time.monotonic() - at
    found = {
        "store": label, "hosts": count, "samples_per_s": (own_metric(port, samples) - before) / seconds,
        "series": own_metric(port, series), "cpu_percent": 100 * usage.so_far()["cpu_s"] / seconds, "peak_mib": peak / 2**20,
        "scraped_series_per_host": value(port, 'avg(scrape_samples_scraped{job="vramscope"})'),
        "scrape_ms": 1000 * value(port, 'avg(scrape_duration_seconds{job="vramscope"})'),
        "up": value(port, 'count(up{job="vramscope"} == 1)'), "leaks": len(query(port, "site:vramscope_suspect_growth_bytes_per_second:hosts")),
    }
    if label == "prometheus":
        groups = json.loads(get(port, "/api/v1/rules"))["data"]["groups"]
        found["rules_ms"] = {group["name"]: 1000 * group["evaluationTime"] for group in groups}
        found["alerts"] = sum(len(rule.get("alerts", [])) for group in groups for rule in group["rules"])
    found["panels"] = panels(port, server.pid, choose(port), begin)
    found["disk_bytes"] = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    report(f"{label}, {count} hosts: {found['samples_per_s']:.0f} samples/s, {found['series']:.0f} series, "
           f"{found['peak_mib']:.0f} MiB, {found['cpu_percent']:.0f} % of a core, panels {sum(one['ms'] for one in found['panels']):.0f} ms")
    return found


def measure(metrics, directory, options, report, save):
    """Measures both stores with each number of hosts, and saves the results after each."""
    results = []
    agents = start([sys.executable, HERE / "agents.py", AGENTS_PORT, metrics], stdout=subprocess.PIPE, text=True)
    agents.stdout.readline()
    for count in options.hosts:
        for make, label in ((prometheus, "prometheus"), (victoria, "victoria-metrics")):
            own = directory / f"{label}-{count}"
            own.mkdir()
            processes, port = make(own, count)
            try:
                results.append(measure_store(label, processes, port, own, count, options, report))
                save({"stores": results})
            finally:
                for process in processes:
                    stop(process, signal.SIGTERM, 120)
    stop(agents, signal.SIGTERM)


def available():
    """Returns the programs that are missing."""
    paths = os.environ["PATH"].split(os.pathsep)
    return [name for name in ("prometheus", "victoria-metrics", "vmalert") if not any(os.access(os.path.join(path, name), os.X_OK) for path in paths)]
