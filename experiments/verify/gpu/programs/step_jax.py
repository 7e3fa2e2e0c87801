"""Times JAX steps, with thousands of context calls, to measure the cost of tracing."""
import json
import sys
import time

import jax
import jax.numpy as jnp

step = jax.jit(lambda a: jnp.tanh(a @ a) * 0.5)
x = jnp.ones((512, 512))
step(x).block_until_ready()
print("READY", flush=True)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    begin = time.time()
    y = x
    for _ in range(200):
        y = step(y)
    y.block_until_ready()
    print("STEP", json.dumps([begin, (time.time() - begin) / 200]), flush=True)
