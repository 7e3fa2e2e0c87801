"""Allocates with JAX without preallocation and prints the total of its allocator."""
import jax
import jax.numpy as jnp
from hold import hold

device = jax.devices()[0]


def account(what):
    stats = device.memory_stats()
    hold(what, pool_total=stats.get("pool_bytes"), in_use=stats["bytes_in_use"])


x = jnp.ones((2048, 2048))
x.block_until_ready()
account("one array")
step = jax.jit(lambda a: (a @ a).sum())
step(x).block_until_ready()
account("a step")
kept = [jnp.ones((1024, 1024 * n)) for n in range(1, 6)]
jax.block_until_ready(kept)
account("five more")
