"""w1_small_mlp in JAX."""

from __future__ import annotations

import jax

from alphac.bench.jax_peer import Tree, cross_entropy, linear, sgd

STEPS_PER_SCAN = 200
OPTIMIZER = sgd(0.1)


def loss(p: Tree, batch: Tree) -> jax.Array:
    h = jax.nn.relu(linear(p, batch["image"], 1))
    return cross_entropy(linear(p, h, 2), batch["label"])
