"""Keeps the result of every step in a list."""
import cupy
from steps import FIXED, steps

history = []


def simulate(state):
    result = cupy.sin(state) * 0.5  # leaks here
    history.append(float(result.sum()) if FIXED else result)
    return result


field = cupy.ones((512, 512), dtype=cupy.float32)
for _ in steps():
    field = simulate(field)
