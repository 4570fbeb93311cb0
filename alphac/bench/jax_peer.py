"""How JAX trains a peer's file: one jitted call per step, or a scan over many steps in one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alphac.bench import peers

Tree = Any  # arrays by name


@dataclass(frozen=True)
class Optimizer:
    """`start(parameters)` makes its state; `update(parameters, state, gradients)` gives the next of both."""

    start: Callable[[Tree], Any]
    update: Callable[[Tree, Any, Tree], tuple[Tree, Any]]


def sgd(rate: float) -> Optimizer:
    return Optimizer(lambda p: (), lambda p, s, g: (jax.tree.map(lambda p, g: p - rate * g, p, g), s))


def momentum(rate: float, decay: float) -> Optimizer:
    def update(p: Tree, s: Tree, g: Tree) -> tuple[Tree, Tree]:
        s = jax.tree.map(lambda v, g: decay * v + g, s, g)
        return jax.tree.map(lambda p, v: p - rate * v, p, s), s

    return Optimizer(lambda p: jax.tree.map(jnp.zeros_like, p), update)


def adamw(rate: float, decay: float) -> Optimizer:
    def start(p: Tree) -> Any:
        return jnp.float32(0), jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)

    def update(p: Tree, s: Any, g: Tree) -> tuple[Tree, Any]:
        t, m, v = s[0] + 1, s[1], s[2]
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        c1, c2, kept = 1 - 0.9**t, 1 - 0.999**t, 1 - rate * decay

        def moved(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            return p * kept - rate * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)

        return jax.tree.map(moved, p, m, v), (t, m, v)

    return Optimizer(start, update)


def adam(rate: float) -> Optimizer:
    return adamw(rate, 0)


def linear(p: Tree, x: jax.Array, number: int) -> jax.Array:
    """Layer `number` of parameters that are named w1, b1 and so on."""
    return x @ p[f"w{number}"] + p[f"b{number}"]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over the rows."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


class Contender:
    """A training loop. `loading` is how many seconds it took to load and convert the data."""

    def __init__(self, file: Path, variant: str, directory: Path, threads: int) -> None:
        peer: Any = peers.load(file)
        began = time.monotonic()
        batches = list(peers.batches(peer, directory))
        self._count = len(batches)
        self._scans = variant == "scan"
        self.quantum = peer.STEPS_PER_SCAN if self._scans else 1
        if self._scans:
            first = batches[0]
            stacked = {n: np.stack([b[n] for b in batches]) if len(batches) > 1 else first[n][None] for n in first}
            self._data: Any = jax.block_until_ready({name: jnp.asarray(array) for name, array in stacked.items()})
        else:
            self._data = [jax.block_until_ready({n: jnp.asarray(a) for n, a in b.items()}) for b in batches]
        self.loading = time.monotonic() - began
        parameters = {name: jnp.asarray(array) for name, array in peers.start_values(peer, directory).items()}
        self._state = (parameters, peer.OPTIMIZER.start(parameters))
        self._call = self._jitted(peer)
        self._step = 0

    def _jitted(self, peer: Any) -> Callable[..., Any]:
        def step(state: Any, batch: Tree) -> Any:
            parameters, optimizer = state
            loss, gradients = jax.value_and_grad(peer.loss)(parameters, batch)
            return peer.OPTIMIZER.update(parameters, optimizer, gradients), loss

        def steps(state: Any, first: int, data: Tree) -> Any:
            def body(state: Any, number: jax.Array) -> Any:
                place = number % self._count if self._count > 1 else 0
                return step(state, {name: array[place] for name, array in data.items()})

            return jax.lax.scan(body, state, first + jnp.arange(self.quantum))

        return jax.jit(steps if self._scans else step, donate_argnums=0)

    def first(self, count: int) -> list[float]:
        """The losses of the next steps, at least so many."""
        losses: list[float] = []
        while len(losses) < count:
            losses += np.atleast_1d(self._run(self.quantum)).tolist()
        return losses

    def advance(self, count: int) -> float:
        """Train for so many steps, a multiple of `quantum`; the last one's loss."""
        return float(np.atleast_1d(self._run(count))[-1])

    def _run(self, count: int) -> jax.Array:
        """Train; the losses of the last call."""
        end = self._step + count
        loss = jnp.float32(0)
        while self._step < end:
            given = (self._step, self._data) if self._scans else (self._data[self._step % self._count],)
            self._state, loss = self._call(self._state, *given)
            self._step += self.quantum
        return loss
