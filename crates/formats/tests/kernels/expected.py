#!/usr/bin/env python3
"""Writes full.txt: what binutils' c++filt makes of each line of symbols.txt.

The symbols are of kernels of PyTorch, CUTLASS, cuBLAS, cuDNN, NCCL, CUB, Thrust, vLLM, FlashInfer, Marlin and
Numba, as profilers show them. short.txt is written by hand, a line for each symbol.
"""

import pathlib
import subprocess

folder = pathlib.Path(__file__).parent
symbols = (folder / "symbols.txt").read_text()
names = subprocess.run(["c++filt"], input=symbols, text=True, capture_output=True, check=True).stdout
(folder / "full.txt").write_text(names)
