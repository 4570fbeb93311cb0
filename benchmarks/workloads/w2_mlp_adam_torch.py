"""w2_mlp_adam in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  everybody's name for it
from torch import Tensor

from alphac.bench.peers import Arrays
from alphac.bench.torch_peer import Tensors, linear, matrices_transposed

parameters = matrices_transposed


def batch(columns: Arrays) -> Arrays:
    return {"image": columns["image"], "label": columns["label"].astype("int64")}


def loss(p: Tensors, batch: Tensors) -> Tensor:
    h = F.relu(linear(p, batch["image"], 1))
    h = F.relu(linear(p, h, 2))
    return F.cross_entropy(linear(p, h, 3), batch["label"])


def optimizer(parameters: list[Tensor], fused: bool | None) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, fused=fused)
