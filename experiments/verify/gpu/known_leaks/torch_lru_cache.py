"""Caches a function that returns tensors with functools.lru_cache(maxsize=None)."""
import functools

import torch
from steps import FIXED, steps


@functools.lru_cache(maxsize=8 if FIXED else None)
def mask(length):
    return torch.ones(1024, length, device="cuda").tril()  # leaks here


for number in steps():
    mask(256 + number)
