"""Against PyTorch on the CPU: the same first weights, the same batches, every rate as the example ships it.

Two comparisons of 100 steps each. Two trainings side by side, ours and PyTorch's, have the same losses within a
thousandth, and the same parameters at the end. And every single step, started from PyTorch's states, is as near to
PyTorch's as float32 lets one hope: within 1e-5, or four times what lies between PyTorch's own step in float32 and in
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from session import Session

torch = pytest.importorskip("torch", reason="the extra `peers` is not installed")
from peers_models import PEERS, Peer  # noqa: E402  after torch is known to be there

pytestmark = pytest.mark.peers

Array = npt.NDArray[Any]
Taken = tuple[dict[str, Array], float]  # a step of PyTorch's: the states after it, and its loss
STEPS, THREADS = 100, 2
NEAR, OWN, ALIKE, FALL = 1e-5, 4, 1e-3, 0.3


class Comparison:
    """An example here and its peer there. PyTorch's training is made once, by whoever asks first."""

    def __init__(self, session: Session, peer: Peer) -> None:
        self.session, self.peer = session, peer
        self.first = session.states()
        self._trained: list[Taken] = []

    def step(self, states: Mapping[str, Array], number: int, dtype: Any) -> Taken:
        """PyTorch's step, from our states or its own."""
        return self.peer.step(states, self.session.batch(number), number, dtype)

    def train(self, dtype: Any) -> list[Taken]:
        """PyTorch's training from our first states."""
        taken = [self.step(self.first, 0, dtype)]
        for number in range(1, STEPS):
            taken.append(self.step(taken[-1][0], number, dtype))
        return taken

    @property
    def trained(self) -> list[Taken]:
        self._trained = self._trained or self.train(torch.float32)
        return self._trained


@pytest.fixture(scope="module", params=PEERS)
def comparison(request: pytest.FixtureRequest, bundle: Callable[..., Path]) -> Iterator[Comparison]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    with Session(bundle(request.param), threads=THREADS) as session:
        yield Comparison(session, PEERS[request.param])
    torch.set_num_threads(before)


def distance(x: Array, y: Array) -> float:
    """Between two tensors in the 2-norm, relative to the second; absolute where that is zero."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    length = float(np.linalg.norm(y.ravel()))
    return float(np.linalg.norm((x - y).ravel())) / (length or 1.0)


def test_training_side_by_side(comparison: Comparison) -> None:
    theirs = [loss for _, loss in comparison.trained]
    comparison.session.assign(comparison.first)
    ours = [loss["loss"] for loss in comparison.session.train(STEPS)]
    assert ours[-1] <= (1 - FALL) * ours[0]
    assert theirs[-1] <= (1 - FALL) * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=ALIKE)
    ends = comparison.trained[-1][0]
    apart = {n: distance(a, ends[n]) for n, a in comparison.session.states("param").items()}
    assert max(apart.values()) <= ALIKE, apart


def test_each_step_from_their_states(comparison: Comparison) -> None:
    before = comparison.first
    for number, (after, loss) in enumerate(comparison.trained):
        comparison.session.assign(before)
        ours = {"loss": np.array(comparison.session.step(number)["loss"]), **comparison.session.states()}
        wide, wide_loss = comparison.step(before, number, torch.float64)
        theirs, wide = {"loss": np.array(loss), **after}, {"loss": np.array(wide_loss), **wide}
        for name, array in ours.items():
            found, allowed = distance(array, theirs[name]), max(NEAR, OWN * distance(theirs[name], wide[name]))
            assert found <= allowed, f"step {number}, {name}: {found:.2e} from PyTorch, {allowed:.2e} allowed"
        before = after
