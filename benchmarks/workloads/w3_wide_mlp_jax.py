"""w3_wide_mlp in JAX."""

from __future__ import annotations

import jax

from alphac.bench.jax_peer import Tree, adam, linear

STEPS_PER_SCAN = 4
OPTIMIZER = adam(1e-3)


def loss(p: Tree, batch: Tree) -> jax.Array:
    h = jax.nn.gelu(linear(p, batch["x"], 1), approximate=True)
    return ((linear(p, h, 2) - batch["y"]) ** 2).mean()
