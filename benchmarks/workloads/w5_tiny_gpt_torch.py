"""w5_tiny_gpt in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  everybody's name for it
from torch import Tensor

from alphac.bench.peers import Array, Arrays
from alphac.bench.torch_peer import Tensors

LAYERS, HEADS = 4, 4
LAYER = "logits.layer."  # where alphac keeps the layers' parameters, stacked


def parameters(initial: Arrays) -> Arrays:
    """One tensor per layer; matrices of shape (out, in), the heads' axes put together."""
    found = {name: array for name, array in initial.items() if not name.startswith(LAYER)}
    found["unembed"] = initial["unembed"].T
    for name, stacked in initial.items():
        short = name.removeprefix(LAYER)
        if short == name:
            continue
        for number, array in enumerate(stacked):
            found[f"{short}{number}"] = flat(short, array)
    return found


def flat(name: str, array: Array) -> Array:
    """A matrix as (out, in), anything else as a vector."""
    if name in ("qkv", "up"):
        return array.reshape(array.shape[0], -1).T
    if name in ("out", "down"):
        return array.reshape(-1, array.shape[-1]).T
    return array.reshape(-1)


def batch(columns: Arrays) -> Arrays:
    return {name: array.astype("int64") for name, array in columns.items()}


def layer(p: Tensors, x: Tensor, number: int) -> Tensor:
    def norm(x: Tensor, part: int) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"scale{part}{number}"], p[f"shift{part}{number}"])

    batch, time, width = x.shape
    qkv = F.linear(norm(x, 1), p[f"qkv{number}"], p[f"bias{number}"])
    q, k, v = qkv.view(batch, time, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, time, width)
    x = x + F.linear(seen, p[f"out{number}"], p[f"bias_out{number}"])
    h = F.gelu(F.linear(norm(x, 2), p[f"up{number}"], p[f"bias_up{number}"]), approximate="tanh")
    return x + F.linear(h, p[f"down{number}"], p[f"bias_down{number}"])


def loss(p: Tensors, batch: Tensors) -> Tensor:
    x = p["embed"][batch["token"]] + p["position"]
    for number in range(LAYERS):
        x = layer(p, x, number)
    logits = F.linear(F.layer_norm(x, x.shape[-1:], p["scale"], p["shift"]), p["unembed"])
    return F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())


def optimizer(parameters: list[Tensor], fused: bool | None) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.01, fused=fused)
