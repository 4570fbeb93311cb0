"""w4_cnn in JAX: channels last, as alphac stores images."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from alphac.bench.jax_peer import Tree, cross_entropy, momentum

STEPS_PER_SCAN = 20
OPTIMIZER = momentum(0.01, 0.9)
LAYOUT = ("NHWC", "HWIO", "NHWC")


def layer(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Convolution, relu, and the maximum of every 2 × 2."""
    x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=LAYOUT) + bias)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def loss(p: Tree, batch: Tree) -> jax.Array:
    h = layer(batch["image"], p["kernel1"], p["bias1"])
    h = layer(h, p["kernel2"], p["bias2"])
    return cross_entropy(h.reshape(h.shape[0], -1) @ p["w"] + p["b"], batch["label"])
