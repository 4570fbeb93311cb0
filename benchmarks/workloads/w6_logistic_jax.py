"""w6_logistic in JAX."""

from __future__ import annotations

import jax

from alphac.bench.jax_peer import Tree, sgd
from alphac.bench.peers import Arrays

STEPS_PER_SCAN = 4
OPTIMIZER = sgd(0.1)


def parameters(initial: Arrays) -> Arrays:
    return {"w": initial["w"].reshape(-1, 1), "b": initial["b"].reshape(1)}


def loss(p: Tree, batch: Tree) -> jax.Array:
    logit = (batch["x"] @ p["w"] + p["b"])[:, 0]
    return (jax.nn.softplus(logit) - batch["y"] * logit).mean()
