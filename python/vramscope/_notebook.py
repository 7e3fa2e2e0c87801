"""The magic ``%%vramscope`` of IPython and Jupyter."""

from typing import Any

from vramscope import _collector
from vramscope._measure import measure


def load_ipython_extension(ipython: Any) -> None:
    """Registers ``%%vramscope``: called by ``%load_ext vramscope``. Starts the collector, so load it before CUDA is used."""
    _collector.start()

    def vramscope(line: str, cell: str) -> None:
        """Runs a cell and shows its GPU memory: peak, plot, and lines whose memory was not freed."""
        with measure(line.strip() or "cell", collect_garbage=True) as block:
            ipython.run_cell(cell)
        from IPython.display import display

        display(block.result)  # type: ignore[no-untyped-call]

    ipython.register_magic_function(vramscope, magic_kind="cell")
