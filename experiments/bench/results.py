"""Results of a machine: one JSON file, a part for each measurement."""
import datetime
import json
import os
import platform
import subprocess


def sh(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def facts(vramscope):
    """What the figures depend on."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1])
    gpu = sh("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 1048576),
        "kernel": platform.release().split("-")[0],
        "virtual": "hypervisor" in sh("grep", "-m1", "flags", "/proc/cpuinfo"),
        "gpu": gpu[0] if gpu else None,
        "version": sh(vramscope, "--version"),
        "date": datetime.date.today().isoformat(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def lines(value, depth=0):
    """JSON with a line for each row of a table, so that a change can be read."""
    if depth < 2 and isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {lines(one, depth + 1)}" for key, one in value.items()]
        return "{\n" + ",\n".join(rows) + "\n}" + ("\n" if depth == 0 else "")
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(rounded(one)) for one in value) + "\n]"
    return json.dumps(rounded(value))


def rounded(value):
    """No more digits than were measured."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return value


def keep(path, machine, part, value, about):
    """Replaces one part of the file; the others stay."""
    results = {}
    if os.path.exists(path):
        with open(path) as file:
            results = json.load(file)
    results["machine"] = machine
    results[part] = {"facts": about, **value}
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".new", "w") as file:
        file.write(lines(results))
    os.replace(path + ".new", path)
