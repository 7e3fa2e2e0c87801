"""Paths of the tracer, the driver and the small C programs, and the options that all measurements share."""
import argparse
import glob
import os
import re
import shutil
import struct
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXPERIMENTS = os.path.join(ROOT, "experiments")

# Sources of the programs that `Setup.tool` builds, below experiments/.
SOURCES = {"pairs": "cost/stacks/pairs.c", "growth": "cost/growth.c", "floor": "cost/stress/floor.c",
           "floor.bpf.o": "cost/stress/floor.bpf.c"}


def argument_parser(description):
    """A parser with the options that all measurements share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "target/release"), help="output directory of `./dev build`")
    parser.add_argument("--driver", choices=["sim", "real"], default="sim",
                        help="the simulated driver or the installed one [default: sim]")
    parser.add_argument("--vramscope", help="the vramscope binary [default: the one in --build]")
    parser.add_argument("--workload", help="the workload program of the simulator [default: the one in --build]")
    parser.add_argument("--tools", default=os.path.join(ROOT, "target/bench/tools"),
                        help="directory of the small C programs, which are built if missing")
    parser.add_argument("--machine", default="build machine", help="name of this machine in the report")
    parser.add_argument("--results", help="JSON file to store the results in")
    return parser


def system_driver():
    """Returns the path of the installed driver."""
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"libcuda\.so\.1 .*x86-64.* => (\S+)", listed)
    if not found:
        raise SystemExit("libcuda.so.1 not found on this machine: install the driver, or use --driver sim")
    return os.path.realpath(found.group(1))


class Setup:
    """The tracer, the driver and the workload that a measurement uses."""

    def __init__(self, options):
        self.build, self.simulated, self.tools = options.build, options.driver == "sim", options.tools
        self.vramscope = options.vramscope or os.path.join(self.build, "vramscope")
        self.workload = options.workload or os.path.join(self.build, "sim/workload")
        self.driver_file = os.path.join(self.build, "sim/libcuda.so.1") if self.simulated else system_driver()
        for path in (self.vramscope, self.workload, self.driver_file):
            if not os.path.exists(path):
                raise SystemExit(f"{path} does not exist: run `./dev build`, or give its path as an option")
        if os.geteuid() != 0:
            raise SystemExit("tracing requires root")

    def environment(self, **more):
        """Returns the environment of the target. The simulated device is huge, so that no allocation fails."""
        environment = {**os.environ, **more}
        if self.simulated:
            environment["LD_LIBRARY_PATH"] = os.path.dirname(self.driver_file)
            environment["SIM_MEMORY"] = "100000G"
        return environment

    def other_driver(self):
        """Returns another simulated driver, for a tracer that must not see the target."""
        return os.path.join(self.build, "sim/cmpl/libcuda.so.1")

    def driver_option(self):
        return ["--driver", self.driver_file]

    def tool(self, name):
        """Returns the path of a small C program, or None if it does not exist and cannot be built."""
        path = os.path.join(self.tools, name)
        sources, command = self._recipe(name, path)
        exists = os.path.exists(path)
        if exists and all(os.path.getmtime(source) <= os.path.getmtime(path) for source in sources):
            return path
        if not command:
            return path if exists else None
        os.makedirs(self.tools, exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"cannot build {path}:\n{' '.join(command)}\n{done.stderr}")
        return path

    def _recipe(self, name, path):
        """Returns the sources of a program, and the command that builds it or None if a compiler is missing."""
        source = os.path.join(EXPERIMENTS, SOURCES[name])
        if not shutil.which("gcc"):
            return [source], None
        if name in ("pairs", "growth"):
            return [source], ["gcc", "-O1", "-fno-omit-frame-pointer", "-o", path, source, self.driver_file]
        sources = [source, os.path.join(EXPERIMENTS, "cost/stress/floor.h")]
        # The tracer's own libbpf: those of distributions may be too old for session probes.
        built = sorted(glob.glob(os.path.join(self.build, "build/libbpf-sys-*/out/libbpf.a")), key=os.path.getmtime)
        clang = next((c for c in ["clang", *(f"clang-{n}" for n in range(24, 15, -1))] if shutil.which(c)), None)
        if not built or not clang:
            return sources, None
        out = os.path.dirname(built[-1])
        if name == "floor":
            return sources, ["gcc", "-O2", "-Wall", "-static", "-o", path, source, f"-I{out}/include",
                             built[-1], "-lelf", "-lz"]
        triplet = subprocess.run(["gcc", "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
        arch = "arm64" if triplet.startswith("aarch64") else "x86"
        return sources, [clang, "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", f"-D__TARGET_ARCH_{arch}",
                         f"-I{out}/include", f"-I/usr/include/{triplet}", "-c", source, "-o", path]


def probe_offsets(library, names):
    """Returns the file offsets at which functions are probed.

    A probe goes to the first instruction, or behind a first comparison (as in the entry points of older drivers),
    which would have to be single-stepped.
    """
    with open(library, "rb") as file:
        data = file.read()
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + i * size) for i in range(count)]
    symbols = next(section for section in sections if section[1] == 11)
    texts = sections[symbols[6]][4]
    found = {}
    for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name_at, _, _, section, address, _ = struct.unpack_from("<IBBHQQ", data, at)
        if not 0 < section < count:
            continue
        end = data.index(b"\0", texts + name_at)
        name = data[texts + name_at:end].decode()
        if name in names:
            offset = address - sections[section][3] + sections[section][4]
            found[name] = offset + (10 if data[offset:offset + 2] == b"\x81\x3d" else 0)
    return [found[name] for name in names]
