"""A program of the tests: JAX on CPU devices, one process for each, which meet by jax.distributed.

``jax_steps.py steps=40 per_device_batch_size=4 max_target_length=32``, told and printed as MaxText
does it; ``timer=1``: under a Timer.
"""

from __future__ import annotations

import os
import sys
import time

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

WIDTH = 256


def main() -> None:
    given = {"steps": 40, "per_device_batch_size": 4, "max_target_length": 32, "timer": 0}
    given.update((name, int(value)) for name, _, value in (w.partition("=") for w in sys.argv[1:]))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=int(os.environ["WORLD_SIZE"]),
        process_id=int(os.environ["RANK"]),
    )
    batch, length = given["per_device_batch_size"], given["max_target_length"]
    for name in ("max_target_length", "per_device_batch_size"):
        print(f"Config param {name}: {given[name]}")
    print(f"Config param num_target_devices: {jax.device_count()}")
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    whole = NamedSharding(mesh, PartitionSpec())
    parts = NamedSharding(mesh, PartitionSpec("data"))
    keys = jax.random.split(jax.random.key(1), 4)
    weights = jax.device_put([jax.random.normal(key, (WIDTH, WIDTH)) / 16 for key in keys], whole)
    shape = (batch, length, WIDTH)
    local = jax.random.normal(jax.random.key(2 + jax.process_index()), shape)
    data = jax.make_array_from_process_local_data(parts, jax.device_get(local))

    def loss_of(weights: list[jax.Array], data: jax.Array) -> jax.Array:
        hidden = data
        for each in weights:
            hidden = jnp.tanh(hidden @ each)
        return jnp.square(hidden).mean()

    def one_step(weights: list[jax.Array], data: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        loss, slopes = jax.value_and_grad(loss_of)(weights, data)
        return [each - 0.1 * slope for each, slope in zip(weights, slopes)], loss

    step = jax.jit(one_step)
    timer = None
    if given["timer"]:
        from dlperf_hpc import Timer

        timer = Timer(batch_size=batch, model="jax-toy", seq_len=length, stop=False)
    flops = 6 * WIDTH**2 * len(weights) * batch * length
    for number in range(given["steps"]):
        begun = time.time()
        weights, loss = step(weights, data)
        value = float(loss)  # waits for the devices
        seconds = time.time() - begun
        print(
            f"completed step: {number}, seconds: {seconds:.3f},"
            f" TFLOP/s/device: {flops / seconds / 1e12:.3f},"
            f" Tokens/s/device: {batch * length / seconds:.3f}, loss: {value:.3f}",
            flush=True,
        )
        if timer is not None:
            timer.step(value)


if __name__ == "__main__":
    main()
