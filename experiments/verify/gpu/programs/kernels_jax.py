"""Launches kernels that XLA compiles at run time, counted by PyTorch's profiler."""
import os

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
# Launch kernels individually, not as a graph.
os.environ["XLA_FLAGS"] = "--xla_gpu_enable_command_buffer="
from counted import counted


def work():
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(w, x):
        loss = lambda w: jnp.mean(jnp.tanh(x @ w) ** 2)
        return w - 0.1 * jax.grad(loss)(w)

    w = jnp.ones((512, 512))
    x = jax.random.normal(jax.random.key(0), (256, 512))
    for _ in range(40):
        w = step(w, x)
    print(float(w.sum()))


counted(work)
