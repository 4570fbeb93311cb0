"""w6_logistic in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  everybody's name for it
from torch import Tensor

from alphac.bench.peers import Arrays
from alphac.bench.torch_peer import Tensors


def parameters(initial: Arrays) -> Arrays:
    return {"w": initial["w"].reshape(1, -1), "b": initial["b"].reshape(1)}


def loss(p: Tensors, batch: Tensors) -> Tensor:
    logit = F.linear(batch["x"], p["w"], p["b"])[:, 0]
    return F.binary_cross_entropy_with_logits(logit, batch["y"])


def optimizer(parameters: list[Tensor], fused: bool | None) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, fused=fused)
