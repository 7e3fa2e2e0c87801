"""Measures the GPU memory of Python code.

The numbers come from the CUDA driver calls of the process, which a library records that the driver loads; they include all
frameworks and native code. No root is needed. Start the program with ``vramscope run python train.py``, or let this package
start the collector before CUDA is initialized:

>>> import vramscope
>>> with vramscope.measure("forward") as block:
...     pass
>>> print(block.result.peak_bytes)
0
"""

from vramscope import _collector
from vramscope._collector import VramscopeError, start, stop
from vramscope._format import format_size, parse_size
from vramscope._mark import mark, phase
from vramscope._measure import Frame, Measurement, Site, Tensors, measure, measured
from vramscope._notebook import load_ipython_extension
from vramscope._server import on_memory_pressure, remove_memory_pressure_callback
from vramscope._server import start as _start_server

__all__ = [
    "Frame",
    "Measurement",
    "Site",
    "Tensors",
    "VramscopeError",
    "format_size",
    "load_ipython_extension",
    "mark",
    "measure",
    "measured",
    "on_memory_pressure",
    "parse_size",
    "phase",
    "remove_memory_pressure_callback",
    "start",
    "stop",
]

if _collector.run_dir() is not None:
    # For `vramscope why`.
    _start_server()
