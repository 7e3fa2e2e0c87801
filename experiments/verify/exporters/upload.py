#!/usr/bin/env python3
"""Uploads tables to an S3-compatible server with rclone, with the commands of docs/operations/fleet.md, and reads them there.

usage: upload.py LAKE [--python PATH]

LAKE has the tables of agents, such as those that `tables.py --keep` leaves. The server is moto. Only complete files arrive,
each once; an interrupted upload continues; the retention of the host does not change the bucket; and ClickHouse has the same
answers from the bucket as from the directory. Needs rclone; `--python` is a Python with chdb and moto[server].
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from hosts import Checks, fetch, free_port, wait

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGES = ["chdb==4.4.0", "moto[server]==5.2.5"]
BUCKET = "gpu-tables"
# Views over the tables of a bucket, as contrib/fleet/clickhouse.sql describes it, and over a directory.
READ = """
import json, os, pathlib, re, sys
from chdb.session import Session
session = Session()
text = pathlib.Path(sys.argv[2], "clickhouse.sql").read_text()
if sys.argv[1]:
    text = re.sub(r"file\\('lake/([^']*)'\\)", rf"s3('{sys.argv[1]}/\\1', 'id', 'secret')", text)
text += pathlib.Path(sys.argv[2], "views.sql").read_text()
text = re.sub(r"(?m)^--.*\\n", "", text)
for one in filter(str.strip, text.split(";")):
    session.query(one)
found = {}
for name in sys.argv[3:]:
    rows = str(session.query(f"SELECT * FROM {name}", "JSONEachRow")).splitlines()
    found[name] = sorted(rows)
print(json.dumps(found, sort_keys=True))
"""
VIEWS = ("cost_by_program", "coverage_by_host", "leaks_by_site", "waste_by_pod")


def documented(command):
    """Returns a command of the guide, as words."""
    page = (ROOT / "docs/operations/fleet.md").read_text()
    return shlex.split(next(line for line in page.splitlines() if line.startswith(command)))


def own_environment():
    """Returns the environment without settings for other servers."""
    return {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}


def rclone(environment, *words, check=True):
    done = subprocess.run(["rclone", *words], env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        sys.exit(f"rclone {' '.join(words)}: {done.stderr}")
    return done


def listing(environment):
    """Returns the files of the bucket and their sizes."""
    found = json.loads(rclone(environment, "lsjson", "--recursive", "--files-only", f"bucket:{BUCKET}").stdout)
    return {one["Path"]: one["Size"] for one in found}


def files(directory):
    return {str(path.relative_to(directory)): path.stat().st_size for path in directory.rglob("part-*.parquet")}


@contextlib.contextmanager
def server(python):
    """Runs the server, and yields the environment of rclone and its address."""
    port = free_port()
    process = subprocess.Popen([python, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    wait("the server", lambda: fetch(f"{address}/moto-api/data.json"))
    remote = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": address, "ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "secret",
              "FORCE_PATH_STYLE": "true"}
    environment = {**own_environment(), "RCLONE_CONFIG": "/dev/null", **{f"RCLONE_CONFIG_BUCKET_{key}": value for key, value in remote.items()}}
    try:
        rclone(environment, "mkdir", f"bucket:{BUCKET}")
        yield environment, address
    finally:
        process.terminate()
        process.wait()


def check_upload(directory, environment, checks):
    """Uploads as a timer would: interrupted, complete, again, and after the host has removed old files."""
    upload = [str(directory) if word == "/var/lib/vramscope/tables" else word for word in documented("rclone copy")[1:]]
    expected = files(directory)
    unfinished = next(directory.rglob("part-*.parquet")).with_name(".part-235959-0.parquet.1.part")
    unfinished.write_bytes(b"not complete")
    interrupted = subprocess.Popen(["rclone", *upload, "--transfers", "1"], env=environment, stderr=subprocess.DEVNULL)
    wait("the first file", lambda: listing(environment))
    interrupted.kill()
    interrupted.wait()
    checks.equal("an interrupted upload leaves complete files only",
                 [name for name, size in listing(environment).items() if expected.get(name) != size], [])
    rclone(environment, *upload)
    checks.equal("files in the bucket are those of the directory", listing(environment) == expected, True)
    again = rclone(environment, *upload, "-v", "--stats-one-line").stderr
    checks.equal("a second upload copies", len(re.findall(r": Copied", again)), 0)
    old = sorted(expected)[: len(expected) // 2]
    for name in old:
        (directory / name).unlink()
    rclone(environment, *upload)
    checks.equal("the retention of the host does not change the bucket", listing(environment) == expected, True)
    return expected


def check_retention(directory, environment, checks):
    """Removes old files of the bucket with the command of the guide."""
    kept = next(directory.rglob("part-*.parquet"))
    old = kept.with_name("part-000000-9.parquet")
    shutil.copy(kept, old)
    stamp = time.time() - 100 * 86400
    os.utime(old, (stamp, stamp))
    rclone(environment, "copy", str(directory), f"bucket:{BUCKET}", "--include", "part-*.parquet")
    before = set(listing(environment))
    rclone(environment, *documented("rclone delete")[1:])
    checks.equal("retention removes", before - set(listing(environment)), {str(old.relative_to(directory))})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lake", type=pathlib.Path)
    parser.add_argument("--python")
    options = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        python = options.python
        if not python:
            subprocess.run([sys.executable, "-m", "venv", temporary / "python"], check=True)
            python = temporary / "python/bin/python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
        directory = temporary / "lake"
        shutil.copytree(options.lake, directory)

        def read(source):
            done = subprocess.run([python, "-c", READ, source, ROOT / "contrib/fleet", *VIEWS], capture_output=True, text=True, check=False,
                                  cwd=temporary, env=own_environment())
            return json.loads(done.stdout) if done.returncode == 0 else sys.exit(done.stderr[-2000:])

        with server(python) as (environment, address):
            wanted = read("")
            check_upload(directory, environment, checks)
            checks.equal("ClickHouse has the same answers from the bucket", read(f"{address}/{BUCKET}") == wanted, True)
            checks.equal("views with rows", all(wanted.values()), True)
            check_retention(directory, environment, checks)
    checks.end()


main()
