"""Creates a cuBLAS handle for every call, as an extension would, and does not destroy it."""
import ctypes
import glob
import os
import sys

import torch
from steps import FIXED, steps


def library(name):
    """Loads a library that PyTorch brings or the toolkit has."""
    for place in [*sys.path, "/usr/local/cuda/lib64"]:
        for path in glob.glob(os.path.join(place, "**", name), recursive=place != "/usr/local/cuda/lib64" and place.endswith("site-packages")):
            return ctypes.CDLL(path)
    return ctypes.CDLL(name)


torch.ones(1, device="cuda")
cublas = library("libcublas.so.1[23]")


def multiply():
    handle = ctypes.c_void_p()
    assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0  # leaks here
    if FIXED:
        cublas.cublasDestroy_v2(handle)


for _ in steps(interval=1.0):
    multiply()
