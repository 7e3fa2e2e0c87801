"""Passes a step number as tl.constexpr: Triton compiles and loads a kernel for every value."""
import torch
import triton
import triton.language as tl
from steps import FIXED, steps


@triton.jit
def scale_constant(x, VALUE: tl.constexpr):
    at = tl.arange(0, 64)
    tl.store(x + at, tl.load(x + at) * VALUE)


@triton.jit(do_not_specialize=["value"])
def scale(x, value):
    at = tl.arange(0, 64)
    tl.store(x + at, tl.load(x + at) * value)


data = torch.ones(64, device="cuda")
for number in steps():
    if FIXED:
        scale[(1,)](data, number)
    else:
        scale_constant[(1,)](data, VALUE=number)  # leaks here
