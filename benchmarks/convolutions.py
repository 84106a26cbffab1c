"""What the convolutions of the Nature network cost on a processor, written in several ways, and in torch.

    python benchmarks/convolutions.py --out results/benchmarks/convolutions.json

The network (three convolutions and a dense layer of 512) sees batches of 256 images; times are those of one
batch, forward alone and with all gradients, in a compiled loop over several batches as in a training. Every way is
checked against the one with windows.

    library     the library's: as below, a few images at a time, so that the windows stay in the cache
    windows     blocks of pixels as channels, all windows of the batch side by side, one product per layer
    products    one product of whole images per layer, whose parts are shifted and added; windows for the last
    native      XLA's own convolution (only with --ways native: its gradients take minutes)

Run it on one core (taskset -c 0) to compare with torch's single thread: seconds of the processor count threads
that wait, and a busy machine disturbs all of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.neural.parts import images

BATCH, LOOP, ROUNDS, WIDTH = 256, 3, 3, 512
STYLE: Any = SimpleNamespace(precision="float32", activation="relu", layer_norm=False)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def shifted_sum(z: Any, kernel: int) -> Any:
    """(N, H, W, k * k, F): part i, j moved up and left by i and j pixels, all added: (N, H-k+1, W-k+1, F)."""
    height, width = z.shape[1] - kernel + 1, z.shape[2] - kernel + 1
    places = ((i, j) for i in range(kernel) for j in range(kernel))
    return sum(z[:, i : i + height, j : j + width, i * kernel + j] for i, j in places)


def _shifted_sum_back(kernel: int, shape: tuple[int, ...], dy: Any) -> tuple[Any]:
    down, right = shape[1] - dy.shape[1], shape[2] - dy.shape[2]
    places = ((i, j) for i in range(kernel) for j in range(kernel))
    moved = [jnp.pad(dy, ((0, 0), (i, down - i), (j, right - j), (0, 0))) for i, j in places]
    return (jnp.stack(moved, axis=3),)


shifted_sum.defvjp(lambda z, kernel: (shifted_sum(z, kernel), z.shape), _shifted_sum_back)


def library(layers: list[Any], obs: Any) -> Any:
    return images.a_few_at_a_time(windows, layers, obs)


def windows(layers: list[Any], obs: Any) -> Any:
    return images.nature(STYLE, layers, images.nature_blocks(obs).astype(jnp.float32) / 255)


def products(layers: list[Any], obs: Any) -> Any:
    x = images.nature_blocks(obs).astype(jnp.float32) / 255
    for index, ((kernel, stride, features), layer) in enumerate(zip(images.NATURE, layers, strict=True)):
        if stride == 1:
            values = images._windows(x, kernel) @ layer["kernel"]
        else:
            x, size = images._blocks(x, kernel, stride) if index else x, kernel // stride
            wide = layer["kernel"].reshape(size * size, x.shape[-1], features).swapaxes(0, 1)
            z = x @ wide.reshape(x.shape[-1], -1)
            values = shifted_sum(z.reshape(*z.shape[:-1], size * size, features), size)
        x = jnp.maximum(values + layer["bias"], 0)
    return x.reshape(x.shape[0], -1)


def native(layers: list[Any], obs: Any) -> Any:
    x = obs.astype(jnp.float32) / 255
    for (size, stride, features), layer in zip(images.NATURE, layers, strict=True):
        blocks, channels = size // stride, x.shape[-1]
        kernel = layer["kernel"].reshape(blocks, blocks, stride, stride, channels, features)
        kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(size, size, channels, features)
        order = ("NHWC", "HWIO", "NHWC")
        values = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=order)
        x = jnp.maximum(values + layer["bias"], 0)
    return x.reshape(x.shape[0], -1)


def milliseconds(run: Callable[[], Any], batches: int) -> dict[str, float]:
    """Of one batch, the best of some rounds after a first one: by the clock, and of the processor."""
    run()
    wall, processor = [], []
    for _ in range(ROUNDS):
        begin, spent = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - begin)
        processor.append(time.process_time() - spent)
    return {name: round(1000 * min(s) / batches, 1) for name, s in (("wall", wall), ("processor", processor))}


def loss(way: Callable[..., Any], params: Any, obs: Any) -> Any:
    return jnp.mean(jnp.square(way(params["layers"], obs) @ params["dense"]))


def jax_times(way: Callable[..., Any], params: Any, obs: Any) -> dict[str, Any]:
    """Times of a way to write the convolutions; obs (LOOP, N, 84, 84, 4)."""

    def forward(params: Any) -> Any:
        return jax.lax.scan(lambda total, x: (total + loss(way, params, x), None), 0.0, obs)[0]

    def train(params: Any) -> Any:
        def step(params: Any, x: Any) -> tuple[Any, None]:
            grads = jax.grad(lambda p: loss(way, p, x))(params)
            return jax.tree.map(lambda p, g: p - 1e-4 * g, params, grads), None

        return jax.lax.scan(step, params, obs)[0]

    compiled = {name: jax.jit(f) for name, f in (("forward", forward), ("gradients", train))}
    return {
        name: milliseconds(lambda f=f: jax.block_until_ready(f(params)), LOOP)  # type: ignore[misc]
        for name, f in compiled.items()
    }


def torch_times() -> dict[str, Any]:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3)]
    network = nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, WIDTH))
    obs = torch.randint(0, 255, (BATCH, 4, 84, 84), dtype=torch.uint8)

    def forward() -> None:
        with torch.no_grad():
            network(obs.float() / 255)

    def train() -> None:
        network(obs.float() / 255).square().mean().backward()

    return {"forward": milliseconds(forward, 1), "gradients": milliseconds(train, 1)}


def main() -> None:
    """Measure all ways, print them, and write the file."""
    parser = argparse.ArgumentParser(description="The Nature network's convolutions on a processor.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ways", nargs="+", default=["library", "windows", "products", "torch"])
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((3136, WIDTH)).astype(np.float32) * 0.02
    params: Any = {"layers": images.init_nature(STYLE, rng, 4), "dense": dense}
    obs = jnp.asarray(rng.integers(0, 255, (LOOP, BATCH, 84, 84, 4), dtype=np.uint8))
    ways: dict[str, Any] = {"library": library, "windows": windows, "products": products, "native": native}
    expected = jax.jit(windows)(params["layers"], obs[0, :20])
    found: dict[str, Any] = {}
    for name in options.ways:
        if name == "torch":
            found[name] = torch_times()
        else:
            np.testing.assert_allclose(jax.jit(ways[name])(params["layers"], obs[0, :20]), expected, atol=1e-4)
            found[name] = jax_times(ways[name], params, obs)
        print(name, found[name], flush=True)
    if options.out:
        from capo.files import write_json
        from capo.provenance import provenance

        write_json(options.out, {"batch": BATCH, "milliseconds": found, **provenance()})


if __name__ == "__main__":
    main()
