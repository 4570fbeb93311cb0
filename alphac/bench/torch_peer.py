"""How PyTorch trains a peer's file: eagerly, with fused optimizers, compiled, or with images stored channels last."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  everybody's name for it
from torch import Tensor

from alphac.bench import peers
from alphac.bench.peers import CHANNELS_LAST, Arrays

Tensors = dict[str, Tensor]


def matrices_transposed(initial: Arrays) -> Arrays:
    """PyTorch keeps the weights of a linear layer as (out, in)."""
    return {name: array.T if array.ndim == 2 else array for name, array in initial.items()}


def linear(p: Tensors, x: Tensor, number: int) -> Tensor:
    """Layer `number` of parameters that are named w1, b1 and so on."""
    return F.linear(x, p[f"w{number}"], p[f"b{number}"])


class Contender:
    """A training loop. `loading` is how many seconds it took to load and convert the data."""

    quantum = 1

    def __init__(self, file: Path, variant: str, directory: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        peer: Any = peers.load(file)
        began = time.monotonic()
        layout = torch.channels_last if variant == CHANNELS_LAST else torch.contiguous_format
        self._batches = [_tensors(batch, layout) for batch in peers.batches(peer, directory)]
        self.loading = time.monotonic() - began
        values = _tensors(peers.start_values(peer, directory), layout)
        self._parameters = {name: torch.nn.Parameter(value) for name, value in values.items()}
        self._loss = torch.compile(peer.loss) if variant == "compile" else peer.loss
        self._optimizer = peer.optimizer(list(self._parameters.values()), None if variant == "eager" else True)
        self._step = 0

    def first(self, count: int) -> list[float]:
        """The losses of the next so many steps."""
        return [self.advance(1) for _ in range(count)]

    def advance(self, count: int) -> float:
        """Train for so many steps; the last one's loss."""
        batches, parameters, optimizer = self._batches, self._parameters, self._optimizer
        for step in range(self._step, self._step + count):
            optimizer.zero_grad()
            loss = self._loss(parameters, batches[step % len(batches)])
            loss.backward()
            optimizer.step()
        self._step += count
        return loss.item()  # pyright: ignore[reportPossiblyUnboundVariable]  count is at least 1


def _tensors(arrays: Arrays, layout: torch.memory_format) -> Tensors:
    return {
        name: torch.from_numpy(np.ascontiguousarray(array)).contiguous(
            memory_format=layout if array.ndim == 4 else torch.contiguous_format
        )
        for name, array in arrays.items()
    }
