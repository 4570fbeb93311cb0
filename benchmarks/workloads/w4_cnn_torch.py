"""w4_cnn in PyTorch: images are [batch, channels, rows, columns] here, kernels [to, from, down, across]."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  everybody's name for it
from torch import Tensor

from alphac.bench.peers import Arrays
from alphac.bench.torch_peer import Tensors

CHANNELS_LAST = True


def parameters(initial: Arrays) -> Arrays:
    """The last layer reads features in PyTorch's order, channels first, so that flattening moves nothing."""
    kernels = {name: initial[name].transpose(3, 2, 0, 1) for name in ("kernel1", "kernel2")}
    features, classes = initial["w"].shape
    w = initial["w"].reshape(7, 7, 32, classes).transpose(3, 2, 0, 1).reshape(classes, features)
    return {**initial, **kernels, "w": w}


def batch(columns: Arrays) -> Arrays:
    return {"image": columns["image"].transpose(0, 3, 1, 2), "label": columns["label"].astype("int64")}


def loss(p: Tensors, batch: Tensors) -> Tensor:
    h = F.max_pool2d(F.relu(F.conv2d(batch["image"], p["kernel1"], p["bias1"], padding=1)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, p["kernel2"], p["bias2"], padding=1)), 2)
    return F.cross_entropy(F.linear(h.flatten(1), p["w"], p["b"]), batch["label"])


def optimizer(parameters: list[Tensor], fused: bool | None) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=fused)
