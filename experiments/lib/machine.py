"""Facts about the machine that results depend on, without names and paths that identify it."""
import datetime
import os
import platform
import re
import subprocess
import sys

from lib.paths import ROOT


def output(*command):
    """Returns the standard output of a command, or an empty string if it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gpus():
    """Returns model and driver version of each GPU, as nvidia-smi reports them."""
    listed = output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return [line.split(", ") for line in listed.splitlines() if ", " in line]


def processor():
    """Returns the model of the CPU."""
    try:
        with open("/proc/cpuinfo") as lines:
            found = re.search(r"model name\s*: (.+)", lines.read())
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def kernel():
    """Returns the version of the kernel, without the suffix that names its builder."""
    return re.match(r"[\d.]*\d", platform.release())[0]


def cuda_version(nvcc):
    """Returns the version of a CUDA compiler, or None."""
    found = re.search(r"release ([\d.]+)", output(nvcc, "--version")) if nvcc else None
    return found[1] if found else None


def measurement_facts(vramscope):
    """Returns the facts that are stored with the results of experiments/cost."""
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1])
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 1048576),
        "kernel": kernel(),
        "virtual": "hypervisor" in output("grep", "-m1", "flags", "/proc/cpuinfo"),
        "gpu": next((", ".join(gpu) for gpu in gpus()), None),
        "version": output(vramscope, "--version"),
        "date": datetime.date.today().isoformat(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def published_facts(vramscope, driver, nvcc=None):
    """Returns the facts that are stored with the results of experiments/published.

    The programs report the version of PyTorch themselves, because they load it anyway.
    """
    found = {
        "date": datetime.date.today().isoformat(),
        "kernel": kernel(),
        "CPU": f"{processor()}, {os.cpu_count()} cores",
        "vramscope": output(vramscope, "--version").removeprefix("vramscope "),
        "Python": platform.python_version(),
    }
    if driver == "simulated":
        found["GPU"] = "none: the simulated driver"
    else:
        found["GPU"], found["driver"] = next(iter(gpus()), ("unknown", "unknown"))
        if cuda_version(nvcc):
            found["nvcc"] = cuda_version(nvcc)
    return found


def scrub(text):
    """Removes the paths of this machine: those of the repository become relative, of others the last name is kept."""
    text = text.replace(sys.executable, "python3").replace(ROOT + os.sep, "")
    text = re.sub(r"/[^\s():\"]*?/(simulator|experiments|crates)/", r"\1/", text)
    text = re.sub(r"/[^\s():\"]*/((?:site|dist)-packages|lib/python[\d.]+)/", r"…/\1/", text)
    text = re.sub(r"/rustc/[0-9a-f]+/", "", text)
    return re.sub(r"(?<![^\s(\"'=:])/(?!usr/|lib|proc/|dev/|sys/)[^\s():\"<>/]+(?:/[^\s():\"<>/]+)*/([^\s():\"<>/]+)", r"…/\1", text)


def scrubbed(value):
    """Returns a result with all of its text scrubbed."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [scrubbed(one) for one in value]
    if isinstance(value, dict):
        return {key: scrubbed(one) for key, one in value.items()}
    return value
