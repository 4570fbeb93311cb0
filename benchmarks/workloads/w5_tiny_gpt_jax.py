"""w5_tiny_gpt in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from alphac.bench.jax_peer import Tree, adamw, cross_entropy
from alphac.bench.peers import Array, Arrays

STEPS_PER_SCAN = 4
OPTIMIZER = adamw(3e-4, 0.01)
LAYERS, HEADS = 4, 4
LAYER = "logits.layer."  # where alphac keeps the layers' parameters, stacked


def parameters(initial: Arrays) -> Arrays:
    """One array per layer; the heads' axes put together."""
    found = {name: array for name, array in initial.items() if not name.startswith(LAYER)}
    for name, stacked in initial.items():
        short = name.removeprefix(LAYER)
        if short != name:
            found |= {f"{short}{number}": flat(short, array) for number, array in enumerate(stacked)}
    return found


def flat(name: str, array: Array) -> Array:
    """A matrix as (in, out), anything else as a vector."""
    if name in ("qkv", "up"):
        return array.reshape(array.shape[0], -1)
    if name in ("out", "down"):
        return array.reshape(-1, array.shape[-1])
    return array.reshape(-1)


def layer_norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def layer(p: Tree, x: jax.Array, number: int) -> jax.Array:
    def norm(x: jax.Array, part: int) -> jax.Array:
        return layer_norm(x, p[f"scale{part}{number}"], p[f"shift{part}{number}"])

    batch, time, width = x.shape
    qkv = norm(x, 1) @ p[f"qkv{number}"] + p[f"bias{number}"]
    q, k, v = jnp.moveaxis(qkv.reshape(batch, time, 3, HEADS, width // HEADS), 2, 0)
    seen = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, time, width)
    x = x + seen @ p[f"out{number}"] + p[f"bias_out{number}"]
    h = jax.nn.gelu(norm(x, 2) @ p[f"up{number}"] + p[f"bias_up{number}"], approximate=True)
    return x + h @ p[f"down{number}"] + p[f"bias_down{number}"]


def loss(p: Tree, batch: Tree) -> jax.Array:
    x = p["embed"][batch["token"]] + p["position"]
    for number in range(LAYERS):
        x = layer(p, x, number)
    logits = layer_norm(x, p["scale"], p["shift"]) @ p["unembed"]
    return cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["next"].reshape(-1))
