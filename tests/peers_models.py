"""The examples once more, in PyTorch: its own layers, losses and optimizers, on the names and layouts of our states.

A step is a function of the states: of float32 ones as training goes, of the same ones in float64 to see how far PyTorch
is from itself. What `.alpha` says and PyTorch does otherwise is said where it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812  everybody's name for it
from torch import Tensor

Array = npt.NDArray[Any]
Tensors = dict[str, Tensor]

MLP_RATE, SMOOTHING = 5e-3, 0.1  # of digits_mlp
CNN_RATE, MOMENTUM = 2e-3, 0.1  # of digits_cnn and its running statistics
PEAK, STEPS, WARM_UP, CLIP, LAYERS = 1e-3, 2000, 100, 1.0, 4  # of char_gpt


@dataclass(frozen=True)
class Peer:
    """An example's twin.

    loss        (states, batch) → the loss, and the states that are changed without being learned
    prefix      where our optimizer keeps its states
    optimizer   (parameters, finished steps) → theirs
    clip        the longest gradient
    """

    loss: Callable[[Tensors, Mapping[str, Array]], tuple[Tensor, Tensors]]
    prefix: str
    optimizer: Callable[[list[Tensor], int], torch.optim.Optimizer]
    clip: float = math.inf

    def step(
        self,
        states: Mapping[str, Array],
        batch: Mapping[str, Array],
        number: int,
        dtype: torch.dtype,
    ) -> tuple[dict[str, Array], float]:
        """All states after the step that follows `number` finished ones, in `dtype`'s precision, and its loss."""
        tensors = {
            n: torch.tensor(a, dtype=dtype) if a.dtype.kind == "f" else torch.tensor(a) for n, a in states.items()
        }
        names = [n for n in states if f"{self.prefix}.{n}.m" in states]
        learned = [tensors[n].requires_grad_() for n in names]
        loss, changed = self.loss(tensors, batch)
        loss.backward()
        if self.clip < math.inf:
            torch.nn.utils.clip_grad_norm_(learned, self.clip)
        optimizer = self.optimizer(learned, number)
        for name, parameter in zip(names, learned, strict=True):
            m, v, t = (tensors[f"{self.prefix}.{name}.{part}"] for part in "mvt")
            optimizer.state[parameter] = {"exp_avg": m, "exp_avg_sq": v, "step": t.to(torch.float32)}
        optimizer.step()
        for name, parameter in zip(names, learned, strict=True):
            kept = optimizer.state[parameter]
            changed |= {f"{self.prefix}.{name}.m": kept["exp_avg"], f"{self.prefix}.{name}.v": kept["exp_avg_sq"]}
            changed[f"{self.prefix}.{name}.t"] = kept["step"].to(torch.int32)
        return {n: t.detach().numpy() for n, t in {**tensors, **changed}.items()}, loss.item()


# ---------------------------------------------------------------------- digits_mlp
def _digits_mlp(s: Tensors, batch: Mapping[str, Array]) -> tuple[Tensor, Tensors]:
    image = torch.tensor(batch["image"], dtype=s["w1"].dtype) / 16
    logits = F.linear(F.relu(F.linear(image, s["w1"].T, s["b1"])), s["w2"].T, s["b2"])
    return F.cross_entropy(logits, _index(batch["label"]), label_smoothing=SMOOTHING), {}


# ---------------------------------------------------------------------- digits_cnn
def _digits_cnn(s: Tensors, batch: Mapping[str, Array]) -> tuple[Tensor, Tensors]:
    changed: Tensors = {}

    def convolution(x: Tensor, path: str) -> Tensor:
        """Images are [batch, channels, rows, columns] here, kernels [to, from, down, across]."""
        x = F.conv2d(x, s[f"{path}.kernel"].permute(3, 2, 0, 1), padding=1)
        norm = f"{path}.batch_norm"
        variance, average = torch.var_mean(x.detach(), (0, 2, 3), correction=0)  # F.batch_norm would correct it
        for name, now in (("average", average), ("variance", variance)):
            changed[f"{norm}.{name}"] = (1 - MOMENTUM) * s[f"{norm}.{name}"] + MOMENTUM * now
        x = F.batch_norm(x, None, None, s[f"{norm}.scale"], s[f"{norm}.shift"], training=True, eps=1e-5)
        return F.gelu(x, approximate="tanh")

    image = torch.tensor(batch["image"], dtype=s["logits.dense.w"].dtype).permute(0, 3, 1, 2) / 16
    h = convolution(F.avg_pool2d(convolution(image, "logits.convolution"), 2), "logits.halved")
    logits = F.linear(h.permute(0, 2, 3, 1).flatten(1), s["logits.dense.w"].T, s["logits.dense.b"])
    return F.cross_entropy(logits, _index(batch["label"])), changed


# ---------------------------------------------------------------------- char_gpt
def _char_gpt(s: Tensors, batch: Mapping[str, Array]) -> tuple[Tensor, Tensors]:
    width = s["embed"].shape[1:]
    x = F.embedding(_index(batch["token"]), s["embed"]) + s["position"]
    for i in range(LAYERS):
        layer = {n.removeprefix("logits.layer."): t[i] for n, t in s.items() if n.startswith("logits.layer.")}
        normal = F.layer_norm(x, width, layer["scale1"], layer["shift1"])
        q, k, v = torch.einsum("btw,wshd->sbhtd", normal, layer["qkv"])
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + torch.einsum("bhtd,hdw->btw", seen, layer["out"])
        normal = F.layer_norm(x, width, layer["scale2"], layer["shift2"])
        x = x + F.gelu(normal @ layer["up"], approximate="tanh") @ layer["down"]
    logits = F.layer_norm(x, width, s["scale"], s["shift"]) @ s["unembed"]
    return F.cross_entropy(logits.flatten(0, 1), _index(batch["next"]).flatten()), {}


def cosine(step: int) -> float:
    """char_gpt's rate."""
    done = max(0, step - WARM_UP) / (STEPS - WARM_UP)
    return PEAK * min(1, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * done))


def _index(array: Array) -> Tensor:
    return torch.tensor(array).long()


PEERS = {
    "digits_mlp": Peer(_digits_mlp, "adam", lambda p, _: torch.optim.Adam(p, MLP_RATE)),
    "digits_cnn": Peer(_digits_cnn, "adam", lambda p, _: torch.optim.Adam(p, CNN_RATE)),
    "char_gpt": Peer(
        _char_gpt,
        "clipped.adamw",
        lambda p, step: torch.optim.AdamW(p, cosine(step), betas=(0.9, 0.95), weight_decay=0.1),
        CLIP,
    ),
}
