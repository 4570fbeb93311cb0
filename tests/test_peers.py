"""Against PyTorch on the CPU: the same first weights, the same batches, every rate as the example ships it.

Two comparisons of 100 steps each. Two trainings side by side, ours and PyTorch's, stay within a thousandth of each other.
And every single step, started from PyTorch's states, is as near to PyTorch's as float32 lets one hope: within 1e-5, or
four times what lies between PyTorch's own step in float32 and the same in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from session import Session

from alphac.ir.core import Block, Op
from alphac.ir.ops.define import definition
from alphac.pipeline import parse_and_elaborate

torch = pytest.importorskip("torch", reason="the extra `peers` is not installed")
from peers_models import PEERS, Peer  # noqa: E402  after torch is known to be there

pytestmark = pytest.mark.peers

Array = npt.NDArray[Any]
States = dict[str, Array]
STEPS, THREADS = 100, 2
NEAR, OWN, ALIKE, FALL = 1e-5, 4, 1e-3, 0.3
EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class Training:
    """PyTorch's training of an example: states[t] before step t, and its losses."""

    states: list[States]
    losses: list[float]


class Comparison:
    """An example here and its peer there. PyTorch's training is made once, by whoever asks first."""

    def __init__(self, session: Session, peer: Peer, draws: list[Op]) -> None:
        self.session, self.peer = session, peer
        self.first = session.states()
        self._draws = draws
        self._training: Training | None = None

    def step(self, states: Mapping[str, Array], number: int, dtype: Any) -> tuple[States, float]:
        """PyTorch's step."""
        drawn = [definition("uniform").reference(op, np.int64(number), np.int64(0)) for op in self._draws]
        return self.peer.step(states, self.session.batch(number), number, dtype, drawn)

    def training(self) -> Training:
        if self._training is None:
            states, losses = [self.first], []
            for number in range(STEPS):
                after, loss = self.step(states[-1], number, torch.float32)
                states.append(after)
                losses.append(loss)
            self._training = Training(states, losses)
        return self._training


@pytest.fixture(scope="module", params=PEERS)
def comparison(request: pytest.FixtureRequest, bundle: Callable[..., Path]) -> Iterator[Comparison]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    module = parse_and_elaborate(EXAMPLES / request.param / f"{request.param}.alpha", {})
    with Session(bundle(request.param), threads=THREADS) as session:
        yield Comparison(session, PEERS[request.param], list(uniforms(module.functions["step"].block)))
    torch.set_num_threads(before)


def uniforms(block: Block) -> Iterator[Op]:
    """Where a block, or one within it, draws."""
    for op in block.ops:
        if op.name == "uniform":
            yield op
        for inner in op.blocks:
            yield from uniforms(inner)


def distance(x: Array, y: Array) -> float:
    """Between two tensors in the 2-norm, relative to the second; absolute where that is zero."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    length = float(np.linalg.norm(y.ravel()))
    return float(np.linalg.norm((x - y).ravel())) / (length or 1.0)


def test_training_side_by_side(comparison: Comparison) -> None:
    theirs = comparison.training()
    comparison.session.assign(comparison.first)
    ours = [loss["loss"] for loss in comparison.session.train(STEPS)]
    assert ours[-1] <= (1 - FALL) * ours[0]
    assert theirs.losses[-1] <= (1 - FALL) * theirs.losses[0]
    np.testing.assert_allclose(ours, theirs.losses, rtol=ALIKE)
    ends = {n: distance(a, theirs.states[-1][n]) for n, a in comparison.session.states("param").items()}
    assert max(ends.values()) <= ALIKE, ends


def test_each_step_from_their_states(comparison: Comparison) -> None:
    theirs = comparison.training()
    for number in range(STEPS):
        before, after = theirs.states[number : number + 2]
        comparison.session.assign(before)
        loss = comparison.session.step(number)["loss"]
        ours = comparison.session.states()
        wide, wide_loss = comparison.step(before, number, torch.float64)
        ours["loss"], after_loss = np.array(loss), np.array(theirs.losses[number])
        wide["loss"], after = np.array(wide_loss), {**after, "loss": after_loss}
        for name, array in ours.items():
            allowed = max(NEAR, OWN * distance(after[name], wide[name]))
            found = distance(array, after[name])
            assert found <= allowed, f"step {number}, {name}: {found:.2e} from PyTorch, {allowed:.2e} allowed"
