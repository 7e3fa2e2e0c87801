"""Where things are: the tracer, the driver, the programs that are measured with."""
import argparse
import glob
import os
import re
import shutil
import struct
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXPERIMENTS = os.path.join(ROOT, "experiments")


def options(description):
    """Options that all measurements share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "target/release"), help="what `./dev build` made")
    parser.add_argument("--driver", choices=["sim", "real"], default="sim", help="the simulated driver, or the system's")
    parser.add_argument("--vramscope", help="the tracer, where it is not in the build")
    parser.add_argument("--workload", help="the programs of the simulator, the same")
    parser.add_argument("--tools", default=os.path.join(ROOT, "target/bench/tools"),
                        help="where the small programs in C are, or are built")
    parser.add_argument("--machine", default="build machine", help="what the page calls this machine")
    parser.add_argument("--results", help="JSON file to keep the results in")
    return parser


def system_driver():
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"libcuda\.so\.1 .*x86-64.* => (\S+)", listed)
    if not found:
        raise SystemExit("there is no libcuda.so.1 on this machine: install the driver, or use --driver sim")
    return os.path.realpath(found.group(1))


class Place:
    def __init__(self, chosen):
        self.build, self.simulated, self.tools = chosen.build, chosen.driver == "sim", chosen.tools
        self.vramscope = chosen.vramscope or os.path.join(self.build, "vramscope")
        self.workload = chosen.workload or os.path.join(self.build, "sim/workload")
        self.driver_file = os.path.join(self.build, "sim/libcuda.so.1") if self.simulated else system_driver()
        for path in (self.vramscope, self.workload, self.driver_file):
            if not os.path.exists(path):
                raise SystemExit(f"there is no {path}: run `./dev build`, or name it by an option")
        if os.geteuid() != 0:
            raise SystemExit("tracing needs root")

    def environment(self, **more):
        """What the target sees; a huge simulated device, so that nothing ends for lack of memory."""
        environment = {**os.environ, **more}
        if self.simulated:
            environment["LD_LIBRARY_PATH"] = os.path.dirname(self.driver_file)
            environment["SIM_MEMORY"] = "100000G"
        return environment

    def other_driver(self):
        """Another simulated driver, for a tracer that is to see nothing of the target."""
        return os.path.join(self.build, "sim/cmpl/libcuda.so.1")

    def driver_option(self):
        return ["--driver", self.driver_file]

    def tool(self, name):
        """One of the small programs, or None where it neither is there nor can be built."""
        path = os.path.join(self.tools, name)
        sources, command = self._recipe(name, path)
        there = os.path.exists(path)
        if there and all(os.path.getmtime(source) <= os.path.getmtime(path) for source in sources):
            return path
        if not command:
            return path if there else None
        os.makedirs(self.tools, exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"cannot build {path}:\n{' '.join(command)}\n{done.stderr}")
        return path

    def _recipe(self, name, path):
        """Sources, and the command that makes a program of them, where this machine can."""
        source = {"pairs": "stacks/pairs.c", "growth": "growth.c", "floor": "stress/floor.c",
                  "floor.bpf.o": "stress/floor.bpf.c"}[name]
        source = os.path.join(EXPERIMENTS, source)
        if not shutil.which("gcc"):
            return [source], None
        if name in ("pairs", "growth"):
            return [source], ["gcc", "-O1", "-fno-omit-frame-pointer", "-o", path, source, self.driver_file]
        sources = [source, os.path.join(EXPERIMENTS, "stress/floor.h")]
        # libbpf as the tracer has it: those of distributions may be too old for session probes.
        made = sorted(glob.glob(os.path.join(self.build, "build/libbpf-sys-*/out/libbpf.a")), key=os.path.getmtime)
        clang = next((c for c in ["clang", *(f"clang-{n}" for n in range(24, 15, -1))] if shutil.which(c)), None)
        if not made or not clang:
            return sources, None
        out = os.path.dirname(made[-1])
        if name == "floor":
            return sources, ["gcc", "-O2", "-Wall", "-static", "-o", path, source, f"-I{out}/include",
                             made[-1], "-lelf", "-lz"]
        triplet = subprocess.run(["gcc", "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
        arch = "arm64" if triplet.startswith("aarch64") else "x86"
        return sources, [clang, "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", f"-D__TARGET_ARCH_{arch}",
                         f"-I{out}/include", f"-I/usr/include/{triplet}", "-c", source, "-o", path]


def probe_offsets(library, names):
    """Where in the file the probes of functions go: at the start, or behind a first comparison that would
    be single-stepped, as in the entry points of older drivers."""
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
