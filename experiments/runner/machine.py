"""Facts of the machine, without what would tell whose it is."""
import datetime
import os
import platform
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def output(*command):
    """What a command prints, or nothing if there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gpus():
    """Model and driver of each GPU of this machine, as nvidia-smi tells."""
    told = output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return [line.split(", ") for line in told.splitlines() if ", " in line]


def _cpu():
    try:
        with open("/proc/cpuinfo") as lines:
            found = re.search(r"model name\s*: (.+)", lines.read())
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def _nvcc(nvcc):
    found = re.search(r"release ([\d.]+)", output(nvcc, "--version")) if nvcc else None
    return found[1] if found else None


def facts(vramscope, driver, nvcc=None):
    """What a result depends on. Versions of PyTorch come from the programs, which have it loaded anyway."""
    found = {
        "date": datetime.date.today().isoformat(),
        # Without the words after the number, which name who built the kernel.
        "kernel": re.match(r"[\d.]*\d", platform.release())[0],
        "CPU": f"{_cpu()}, {os.cpu_count()} cores",
        "vramscope": output(vramscope, "--version").removeprefix("vramscope "),
        "Python": platform.python_version(),
    }
    if driver == "simulated":
        found["GPU"] = "none: the simulated driver"
    else:
        found["GPU"], found["driver"] = next(iter(gpus()), ("not told", "not told"))
        if _nvcc(nvcc):
            found["nvcc"] = _nvcc(nvcc)
    return found


def scrub(text):
    """Text without the paths of this machine: those of the repository begin there, of others the last name is left."""
    text = text.replace(sys.executable, "python3").replace(ROOT + os.sep, "")
    text = re.sub(r"/[^\s():\"]*?/(simulator|experiments|crates)/", r"\1/", text)
    text = re.sub(r"/[^\s():\"]*/((?:site|dist)-packages|lib/python[\d.]+)/", r"…/\1/", text)
    text = re.sub(r"/rustc/[0-9a-f]+/", "", text)
    return re.sub(r"(?<![^\s(\"'=:])/(?!usr/|lib|proc/|dev/|sys/)[^\s():\"<>/]+(?:/[^\s():\"<>/]+)*/([^\s():\"<>/]+)", r"…/\1", text)


def scrubbed(value):
    """The same for all text of a result."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [scrubbed(one) for one in value]
    if isinstance(value, dict):
        return {key: scrubbed(one) for key, one in value.items()}
    return value
