#!/usr/bin/env python3
"""Writes the first inputs of every fuzz target, from files of the tests: seeds.py DIRECTORY"""

import base64
import io
import pathlib
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMATS = ROOT / "crates/formats/tests"
NATIVE = ROOT / "crates/capture/src/stacks/native/tests/fixtures"

# Files that are used as they are.
COPIED = {
    "sanitizer": [*FORMATS.glob("import/sanitizer/*")],
    "recording": [*ROOT.glob("crates/app/tests/fixtures/h200/*/events.arrows")],
}

# Small inputs are fast. Larger files are cut, or left out if that makes no sense.
MAX_BYTES = 24 << 10

# Rows of each table of a real export, and items of each list of a snapshot.
MAX_ROWS = 12
MAX_ITEMS = 6

# Options of gcc for programs with unwind tables and debug information.
BUILDS = {
    "dwarf5": ["-g", "-gdwarf-5", "-O2"],
    "dwarf4": ["-g", "-gdwarf-4", "-O0"],
    "compressed": ["-g", "-gz=zlib", "-O2"],
    "frame-pointers": ["-O2", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"],
    "realigned": ["-g1", "-O2", "-mstackrealign", "-mavx"],
}


def small_database(path):
    """Returns a connection to a new file with small pages."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute("PRAGMA page_size = 512")
    return database


def exports(directory):
    """Nsight Systems: the exports of the tests, and a small part of a real one."""
    for script in FORMATS.glob("import/nsys/*.sql"):
        database = small_database(directory / script.stem)
        database.executescript(script.read_text())
        database.close()
    reader = "".join(path.read_text() for path in (ROOT / "crates/formats/src/import/nsys").rglob("*.rs"))
    for path in FORMATS.glob("import/nsys/*.sqlite"):
        real = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        database = small_database(directory / path.stem)
        tables = real.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        for name, sql in tables:
            rows = real.execute(f'SELECT * FROM "{name}" LIMIT {MAX_ROWS}').fetchall()
            if rows and name in reader:
                database.execute(sql)
                marks = ", ".join("?" * len(rows[0]))
                database.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)
        database.commit()
        database.close()


def snapshots(directory):
    """PyTorch: pickles, and a page with one in base64."""

    def small(data):
        if len(data) <= MAX_BYTES // 4:
            return data
        known = {}

        def cut(value):
            # Lists that occur twice still do.
            if id(value) not in known:
                if isinstance(value, list):
                    known[id(value)] = [cut(item) for item in value[:MAX_ITEMS]]
                elif isinstance(value, dict):
                    known[id(value)] = {key: cut(item) for key, item in value.items()}
                else:
                    return value
            return known[id(value)]

        # The second byte is the protocol.
        return write(cut(pickle.loads(data)), data[1], is_fast=False)

    def write(value, protocol, is_fast):
        out = io.BytesIO()
        pickler = pickle.Pickler(out, protocol=protocol)
        pickler.fast = is_fast
        pickler.dump(value)
        return out.getvalue()

    for path in [*FORMATS.glob("torch/generated/*.pickle"), *FORMATS.glob("torch/real/*.pickle")]:
        data = small(path.read_bytes())
        (directory / path.name).write_bytes(data)
        # Without references between its parts, which changes would break.
        (directory / f"{path.name}.fast").write_bytes(write(pickle.loads(data), data[1], is_fast=True))
    for path in FORMATS.glob("torch/generated/*.html"):
        page = re.sub(
            rb"[A-Za-z0-9+/]{1000,}=*",
            lambda found: base64.b64encode(small(base64.b64decode(found[0]))),
            path.read_bytes(),
        )
        (directory / path.name).write_bytes(page)


def libraries(directory, sources, builds):
    """ELF files without a C library, compiled from sources of the tests."""
    for name, options in builds.items():
        for source in sources:
            compiler = "g++" if source.suffix == ".cc" else "gcc"
            output = directory / f"{source.stem}-{name}"
            command = [compiler, *options, f"-ffile-prefix-map={ROOT}=.", "-w", "-fPIC", "-shared", "-nostdlib"]
            command += ["-Wl,--build-id,-z,noseparate-code,--unresolved-symbols=ignore-all", "-o", output, source]
            subprocess.run(command, check=True)


def requests(directory):
    """A request of every path that the agent lists."""
    routes = (ROOT / "crates/agent/src/api/routes.rs").read_text()
    listed = routes.split('const INDEX: &str = "')[1].split('";')[0]
    paths = [line.split()[0] for line in listed.splitlines() if line.startswith("/")]
    for number, path in enumerate(["/", *paths]):
        path = path.replace("PID", "7").replace("=N", "=3").replace("ID", "one").replace("FILE", "summary.txt")
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
        (directory / str(number)).write_text(head)
    (directory / "two").write_text("HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /metrics HTTP/1.0\r\n\r\n")
    (directory / "body").write_text("POST / HTTP/1.1\r\nHost: [::1]:1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


def main():
    out = pathlib.Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)

    def directory(target):
        path = out / target
        path.mkdir(parents=True, exist_ok=True)
        return path

    for target, files in COPIED.items():
        for path in files:
            if path.stat().st_size <= MAX_BYTES:
                name = path.parent.name if target == "recording" else path.name
                shutil.copyfile(path, directory(target) / name)
    for path in FORMATS.glob("import/smi/*"):
        (directory("smi") / path.name).write_bytes(path.read_bytes()[:4096])
    exports(directory("nsys"))
    snapshots(directory("torch"))
    libraries(directory("elf"), [ROOT / "fuzz/library.c"], {"plain": ["-O2"], "debug": ["-g", "-O1"]})
    libraries(directory("dwarf"), [NATIVE / "chain.c", NATIVE / "names.cc"], BUILDS)
    requests(directory("http"))
    for path in (ROOT / "docs").rglob("*.md"):
        for number, block in enumerate(path.read_text().split("\n```toml\n")[1:]):
            (directory("config") / f"{path.stem}-{number}").write_text(block.split("\n```")[0])
    for number in range(7):
        (directory("python") / str(number)).write_bytes(bytes([number]))


if __name__ == "__main__":
    main()
