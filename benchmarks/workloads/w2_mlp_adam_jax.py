"""w2_mlp_adam in JAX."""

from __future__ import annotations

import jax

from alphac.bench.jax_peer import Tree, adam, cross_entropy, linear

STEPS_PER_SCAN = 40
OPTIMIZER = adam(1e-3)


def loss(p: Tree, batch: Tree) -> jax.Array:
    h = jax.nn.relu(linear(p, batch["image"], 1))
    h = jax.nn.relu(linear(p, h, 2))
    return cross_entropy(linear(p, h, 3), batch["label"])
