"""Allocates from CuPy's default pool and prints the total of the pool."""
import cupy
from hold import hold

pool = cupy.get_default_memory_pool()
arrays = [cupy.zeros(n << 18, dtype=cupy.float32) for n in range(1, 9)]
cupy.cuda.Device().synchronize()
hold("eight arrays", pool_total=pool.total_bytes())
del arrays[2:6]
pool.free_all_blocks()
hold("four freed", pool_total=pool.total_bytes())
pinned = cupy.cuda.alloc_pinned_memory(1 << 20)
hold("pinned", pool_total=pool.total_bytes())
