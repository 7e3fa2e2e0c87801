"""Builds the wheel: the package, the program `vramscope` and the library that the CUDA driver loads.

A build backend of PEP 517 without dependencies, and a program: `python3 build_wheel.py OUT [DIR]`. DIR, or the environment
variable VRAMSCOPE_BIN_DIR, has the built program and library; without them cargo builds both. Needs Python 3.11.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
WORKSPACE = HERE.parent
PROGRAM = "vramscope"
LIBRARY = "libvramscope_inject.so"
# Versions before this one of the C library are older than every supported CUDA driver.
OLDEST_GLIBC = 17
# By the number of the processor in the header of an ELF file.
MACHINES = {62: "x86_64", 183: "aarch64"}


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the wheel and returns its file name (PEP 517)."""
    return assemble(Path(wheel_directory), built_files(os.environ.get("VRAMSCOPE_BIN_DIR")))


def built_files(directory):
    """Returns the paths of the program and the library; builds them if no directory is given."""
    if directory is None:
        command = ["cargo", "build", "--release", "--locked", "-p", "vramscope", "-p", "vramscope-inject"]
        subprocess.run(command, cwd=WORKSPACE, check=True)
        directory = WORKSPACE / "target" / "release"
    paths = [Path(directory) / PROGRAM, Path(directory) / LIBRARY]
    for path in paths:
        if not path.is_file():
            raise SystemExit(f"build_wheel: {path} not found; build it with ./dev release")
    return paths


def platform_tag(paths):
    """Returns the platform that the files run on: by the newest version of the C library that they need."""
    versions = [OLDEST_GLIBC]
    for path in paths:
        content = path.read_bytes()
        # A static program needs no C library, though it contains the names of its versions.
        if b"libc.so.6\0" in content:
            versions += [int(number) for number in re.findall(rb"GLIBC_2\.(\d+)\0", content)]
    machine = int.from_bytes(paths[0].read_bytes()[18:20], "little")
    return f"manylinux_2_{max(versions)}_{MACHINES[machine]}"


def metadata(version):
    """Returns the files of the directory `dist-info`, without RECORD and WHEEL."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
        f"License-Expression: {project['license']}",
        f"Keywords: {','.join(project['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
        *(f"License-File: {name}" for name in ("LICENSE-MIT", "LICENSE-APACHE")),
        "Description-Content-Type: text/markdown",
    ]
    entry_points = []
    for group, entries in project["entry-points"].items():
        entry_points += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""]
    return {
        "METADATA": "\n".join(lines) + "\n\n" + (HERE / project["readme"]).read_text(),
        "entry_points.txt": "\n".join(entry_points),
        "licenses/LICENSE-MIT": (WORKSPACE / "LICENSE-MIT").read_text(),
        "licenses/LICENSE-APACHE": (WORKSPACE / "LICENSE-APACHE").read_text(),
    }


def assemble(out, paths):
    """Writes the wheel into a directory and returns its file name. The same files give the same bytes."""
    program, library = paths
    workspace = tomllib.loads((WORKSPACE / "Cargo.toml").read_text())["workspace"]
    version = workspace["package"]["version"]
    tag = f"py3-none-{platform_tag(paths)}"
    name, info, data = f"vramscope-{version}-{tag}.whl", f"vramscope-{version}.dist-info", f"vramscope-{version}.data"
    files = {}
    for path in sorted((HERE / "vramscope").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[str(path.relative_to(HERE))] = (path.read_bytes(), 0o644)
    files[f"{data}/scripts/{PROGRAM}"] = (program.read_bytes(), 0o755)
    # Where the program searches: `../lib/vramscope` of the directory of scripts.
    files[f"{data}/data/lib/vramscope/{LIBRARY}"] = (library.read_bytes(), 0o755)
    # What `vramscope run --why` puts on PYTHONPATH, next to the library.
    hook = HERE / "run_path" / "sitecustomize.py"
    files[f"{data}/data/lib/vramscope/python/{hook.name}"] = (hook.read_bytes(), 0o644)
    for path, text in metadata(version).items():
        files[f"{info}/{path}"] = (text.encode(), 0o644)
    wheel = f"Wheel-Version: 1.0\nGenerator: vramscope\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = (wheel.encode(), 0o644)
    record = []
    for path, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(content)}")
    record.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = ("\n".join(record).encode(), 0o644)
    out.mkdir(parents=True, exist_ok=True)
    temporary = out / f".{name}.{os.getpid()}"
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, (content, mode) in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    temporary.replace(out / name)
    return name


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit("usage: build_wheel.py OUT [DIR]")
    print(assemble(Path(sys.argv[1]), built_files(*sys.argv[2:] or [None])))
