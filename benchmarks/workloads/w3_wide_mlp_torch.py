"""w3_wide_mlp in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  everybody's name for it
from torch import Tensor

from alphac.bench.torch_peer import Tensors, linear, matrices_transposed

parameters = matrices_transposed


def loss(p: Tensors, batch: Tensors) -> Tensor:
    h = F.gelu(linear(p, batch["x"], 1), approximate="tanh")
    return F.mse_loss(linear(p, h, 2), batch["y"])


def optimizer(parameters: list[Tensor], fused: bool | None) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, fused=fused)
