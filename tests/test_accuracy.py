"""The examples learn. Bits repeat, so a bound holds always or never; each leaves room for a change of its example."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from session import Session

Bundle = Callable[..., Path]


@dataclass(frozen=True)
class Learned:
    """The evaluations before and after a training, and the losses of its first and last step."""

    before: dict[str, float]
    after: dict[str, float]
    first: dict[str, float]
    last: dict[str, float]


def learn(bundle: Path, steps: int | None = None) -> Learned:
    """Train a bundle for `steps` steps, or as long as it says."""
    with Session(bundle) as session:
        before = session.evaluate()
        losses = session.train(session.whole if steps is None else steps)
        return Learned(before, session.evaluate(), losses[0], losses[-1])


def test_digits_mlp(bundle: Bundle) -> None:
    learned = learn(bundle("digits_mlp"))
    assert learned.before["accuracy"] < 0.3
    assert learned.after["accuracy"] >= 0.97


@pytest.mark.slow
def test_digits_mlp_over_seeds(bundle: Bundle) -> None:
    """The seed of the weights; which examples are held out is the data's seed, and stays."""
    ends = [learn(bundle("digits_mlp", overrides={"seed": str(seed)})).after["accuracy"] for seed in range(5)]
    assert len(set(ends)) > 1, "the seed is of no account"
    assert statistics.median(ends) >= 0.97, ends


def test_digits_cnn(bundle: Bundle) -> None:
    """Accuracy is measured with running statistics: those of batch_norm are learned too."""
    learned = learn(bundle("digits_cnn"), 55)
    assert learned.last["loss"] < 0.1 * learned.first["loss"]
    assert learned.after["accuracy"] >= 0.94


@pytest.mark.slow
def test_digits_cnn_to_its_end(bundle: Bundle) -> None:
    assert learn(bundle("digits_cnn")).after["accuracy"] >= 0.97


def test_breast_cancer(bundle: Bundle) -> None:
    learned = learn(bundle("breast_cancer"))
    assert learned.after["accuracy"] >= 0.95
    assert learned.after["loss"] < 0.25 * learned.before["loss"]


def test_kmeans_digits(bundle: Bundle) -> None:
    learned = learn(bundle("kmeans_digits"))
    assert learned.first == {}, "there is no loss, and no gradient"
    assert learned.after["inertia"] < 0.65 * learned.before["inertia"]


def test_hybrid_needs_both_its_parts(bundle: Bundle) -> None:
    """Without the gradient clusters count in a space that tells little; without the transition nothing is counted."""
    whole = learn(bundle("hybrid"))
    assert whole.before["accuracy"] < 0.3
    assert whole.after["accuracy"] >= 0.95
    assert whole.after["inertia"] < whole.before["inertia"]
    frozen_encoder = learn(bundle("hybrid", overrides={"rate": "0"}))
    frozen_clusters = learn(bundle("hybrid", overrides={"memory": "1"}))
    assert frozen_encoder.after["accuracy"] < whole.after["accuracy"] - 0.1
    assert frozen_clusters.after["accuracy"] < whole.after["accuracy"] - 0.1


def test_gan_ring(bundle: Bundle) -> None:
    """Drawn points near the ring, and neither learner wins."""
    learned = learn(bundle("gan_ring"), 1000)
    assert learned.after["off_ring"] < 0.15 * learned.before["off_ring"]
    assert all(0.3 < loss < 3 for loss in learned.last.values()), learned.last


def test_char_rnn(bundle: Bundle) -> None:
    learned = learn(bundle("char_rnn"), 20)
    assert learned.before["loss"] == pytest.approx(5.545, abs=0.05), "log 256: it knows nothing"
    assert learned.after["loss"] < 0.65 * learned.before["loss"]


@pytest.mark.slow
def test_char_gpt(bundle: Bundle) -> None:
    learned = learn(bundle("char_gpt"), 200)
    assert learned.before["loss"] == pytest.approx(5.545, abs=0.05), "log 256: it knows nothing"
    assert learned.after["loss"] < 0.55 * learned.before["loss"]
