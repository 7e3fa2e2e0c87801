#!/usr/bin/env python3
"""Watches four PyTorch programs with `vramscope top`, one of which leaks, and measures the seconds until that is shown.

usage: top.py VRAMSCOPE OUTDIR

Starts the programs of `leak_programs/` (kept_losses leaks, the others do not; ctypes_leak is left out), then `top` on a
pseudo-terminal. The screens of processes, sites, call stack and suspects are left in OUTDIR as text. Needs root, a GPU and
PyTorch. Exits with 1 if a program that does not leak is called a leak, or the one that does is not within two minutes.
"""

import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
sys.path.insert(0, os.path.join(ROOT, "crates/app/tests/top"))

import session

LEAK = "kept_losses"
PROGRAMS = [LEAK, "bounded_cache", "clean", "clean"]
SECONDS = 150
WARM_UP = 20


def main():
    vramscope, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    session.LIMIT_SECONDS = 120
    paths = [os.path.join(HERE, "leak_programs", f"{name}.py") for name in PROGRAMS]
    programs = [subprocess.Popen([sys.executable, path, "--seconds", str(SECONDS)]) for path in paths]
    try:
        time.sleep(WARM_UP)
        start = time.monotonic()
        view = session.Session([vramscope, "top", "--allocators"], 120, 40)
        view.step({"wait": f"{LEAK}.py"})
        print(f"first screen after {time.monotonic() - start:.1f} s")
        view.until("the verdict", lambda: any(LEAK in line and "leak, " in line for line in view.screen.text().splitlines()))
        print(f"leak shown after {time.monotonic() - start:.1f} s")
        view.step({"screen": "processes"})
        view.step({"keys": f"/{LEAK}\r"})
        view.step({"gone": "bounded_cache"})
        for name, texts in [("sites", ["PLACE", "leak, "]), ("stack", ["call stack, innermost"])]:
            view.step({"keys": "\r"})
            for text in texts:
                view.step({"wait": text})
            view.step({"screen": name})
        view.step({"keys": "2"})
        view.step({"wait": "LEAKS AT"})
        view.step({"screen": "suspects"})
        view.step({"keys": "q"})
        view.step({"exit": True})
    finally:
        for program in programs:
            program.kill()
    screens = view.result["screens"]
    for name, screen in screens.items():
        with open(os.path.join(out, f"{name}.txt"), "w", encoding="utf-8") as file:
            file.write(screen + "\n")
    wrong = [line for line in screens["processes"].splitlines() if "leak, " in line and LEAK not in line]
    for line in wrong:
        print("wrong:", line)
    sys.exit(1 if wrong else 0)


main()
