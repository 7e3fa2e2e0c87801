"""Makes CuPy's cache of FFT plans unlimited; lengths differ from step to step. The fix keeps its default of 16 plans."""
import cupy
from steps import FIXED, steps

if not FIXED:
    cupy.fft.config.get_plan_cache().set_size(-1)


def transform(length):
    return cupy.fft.fft(cupy.ones((4, length), dtype=cupy.complex64))  # leaks here


# Smaller and smaller, so that CuPy's pool can reuse its blocks.
for number in steps():
    transform(131_101 - 2 * number)
