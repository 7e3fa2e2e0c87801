#!/usr/bin/env python3
"""Writes full.txt with the output of binutils' c++filt for each line of symbols.txt.

The symbols are of kernels of PyTorch, CUTLASS, cuBLAS, cuDNN, NCCL, CUB, Thrust, vLLM, FlashInfer, Marlin and
Numba, as profilers show them. short.txt is written by hand, a line for each symbol.
"""

import pathlib
import subprocess

here = pathlib.Path(__file__).parent
symbols = (here / "symbols.txt").read_text()
names = subprocess.run(["c++filt"], input=symbols, text=True, capture_output=True, check=True).stdout
(here / "full.txt").write_text(names)
