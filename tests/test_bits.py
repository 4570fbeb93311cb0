"""The promise: one learning system, any number of roles, threads and shares, with a stop and a resume: the same bits.

All examples run in their shipped shape, on grain 32. Roles run as processes and are compared byte by byte; counters and
flipped bits show that each of them does its own part of the work, and that it matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from running import Run, assert_own_work, assert_same_bits, run_roles, train

from alphac.runtime.bundle import read_bundle
from alphac.runtime.collectives import Collective
from alphac.runtime.errors import KernelFailed
from alphac.runtime.executor import Exchanged

Bundle = Callable[..., Path]
QUICK = {"digits_mlp": 20, "kmeans_digits": 10, "hybrid": 10}
LONG = 100
STOP = 40  # the step after which the long runs are stopped, and resumed by others


@dataclass(frozen=True)
class Sharing:
    """Who does the work: equal roles, or proportions; `shares` is what each must end up with of 32 shards."""

    shares: tuple[int, ...]
    proportions: tuple[int, ...] | None = None
    threads: int = 1

    def __str__(self) -> str:
        who = "-".join(map(str, self.proportions)) if self.proportions else f"{len(self.shares)}"
        return f"{who}x{self.threads}"

    def bundle(self, compile_example: Bundle, example: str) -> Path:
        if self.proportions:
            return compile_example(example, shares=self.proportions)
        return compile_example(example, roles=len(self.shares))


EQUAL = {1: (32,), 2: (16, 16), 3: (11, 11, 10), 5: (7, 7, 6, 6, 6), 8: (4,) * 8}
UNEQUAL = {(3, 5): (12, 20), (1, 2, 7): (3, 7, 22)}


def sharings(threads: tuple[int, ...]) -> list[Sharing]:
    """All of them but the reference, one role of one thread."""
    every = [Sharing(shares, None, t) for shares in EQUAL.values() for t in threads]
    every += [Sharing(shares, proportions, t) for proportions, shares in UNEQUAL.items() for t in threads]
    return [s for s in every if s != Sharing((32,))]


@dataclass
class References:
    """Runs of one role and one thread, each made once."""

    compile_example: Bundle
    directory: Path
    made: dict[tuple[str, int], Run] = field(default_factory=dict)

    def __call__(self, example: str, steps: int) -> Run:
        if (example, steps) not in self.made:
            bundle = self.compile_example(example)
            assert read_bundle(bundle).manifest.shards == 32
            out = self.directory / f"{example}-{steps}"
            run = self.made[example, steps] = train(bundle, out, steps)
            assert_own_work(run, (32,), 1)
        return self.made[example, steps]


@pytest.fixture(scope="module")
def reference(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(bundle, tmp_path_factory.mktemp("reference"))


def compare(example: str, steps: int, sharing: Sharing, bundle: Bundle, reference: References, out: Path) -> None:
    run = train(sharing.bundle(bundle, example), out, steps, threads=sharing.threads)
    assert_own_work(run, sharing.shares, sharing.threads)
    assert_same_bits(run, reference(example, steps))


# ---------------------------------------------------------------------- quick
@pytest.mark.parametrize(
    ("example", "sharing"),
    [
        ("digits_mlp", Sharing((32,), None, 2)),
        ("digits_mlp", Sharing((16, 16))),
        ("digits_mlp", Sharing((11, 11, 10), None, 2)),
        ("digits_mlp", Sharing((12, 20), (3, 5))),
        ("kmeans_digits", Sharing((11, 11, 10))),
        ("kmeans_digits", Sharing((3, 7, 22), (1, 2, 7))),
        ("hybrid", Sharing((12, 20), (3, 5), 2)),
    ],
    ids=str,
)
def test_any_sharing(example: str, sharing: Sharing, bundle: Bundle, reference: References, tmp_path: Path) -> None:
    compare(example, QUICK[example], sharing, bundle, reference, tmp_path / "run")


def test_stopped_and_resumed_by_others(bundle: Bundle, reference: References, tmp_path: Path) -> None:
    resumed(bundle, "digits_mlp", tmp_path, Sharing((16, 16)), 7, Sharing((12, 20), (3, 5), 2), 20, reference)


def test_the_reference_learns(reference: References) -> None:
    """The same bits would be cheap if nothing changed."""
    losses = [line["loss"] for line in reference("digits_mlp", 20).steps()]
    assert len(set(losses)) == 20
    assert losses[-1] < 0.7 * losses[0]


def resumed(
    bundle: Bundle,
    example: str,
    directory: Path,
    first: Sharing,
    stop: int,
    second: Sharing,
    steps: int,
    reference: References,
) -> None:
    """Stop after `stop` steps of the first sharing, go on with the second."""
    out = directory / "run"
    run = train(first.bundle(bundle, example), out, stop, threads=first.threads)
    assert run.checkpoints[-1] == stop
    run = train(second.bundle(bundle, example), out, steps, threads=second.threads, resume="latest")
    assert run.record["first_step"] == stop
    assert_own_work(run, second.shares, second.threads)
    assert_same_bits(run, reference(example, steps))


# ---------------------------------------------------------------------- nothing is faked
class Corrupting:
    """A role's group that flips one bit of what the role contributes in one step: of the largest number in the largest
    value (the loss beside it is only looked at, a wrong bit there would change no state)."""

    def __init__(self, whole: Collective, step: int) -> None:
        self._whole, self._step, self._now = whole, step, -1
        self.flipped = 0

    def exchange(self, value: Exchanged) -> None:
        if self.due(value):
            self.flip(value, len(max(value.nodes, key=np.size)))
        self._whole.exchange(value)

    def due(self, value: Exchanged) -> bool:
        return self._now == self._step and not self.flipped and any(nodes[0].size > 1 for nodes in value.nodes)

    def flip(self, value: Exchanged, subtrees: int) -> None:
        """Flip a bit in the first `subtrees` of the largest value's nodes: the mantissa's first, which
        no rounding swallows."""
        numbers = max(value.nodes, key=np.size)[:subtrees].reshape(-1)
        place = int(np.abs(numbers).argmax())
        numbers[place : place + 1].view(np.uint32)[:] ^= 1 << 22
        self.flipped += 1

    def begin_step(self, step: int) -> None:
        self._now = step
        self._whole.begin_step(step)

    def __getattr__(self, name: str) -> object:
        return getattr(self._whole, name)


class Deaf(Corrupting):
    """A role's group that flips one bit of the result that the role gets."""

    def exchange(self, value: Exchanged) -> None:
        self._whole.exchange(value)
        if self.due(value):
            self.flip(value, 1)


def tampered(kind: type[Corrupting], made: list[Corrupting]) -> Callable[[Collective], Collective]:
    def wrap(whole: Collective) -> Collective:
        made.append(kind(whole, step=3))
        return made[-1]  # type: ignore[return-value]  what is not its own it takes from the group that it wraps

    return wrap


@pytest.mark.parametrize(("example", "role"), [("digits_mlp", 0), ("digits_mlp", 1), ("kmeans_digits", 2)])
def test_one_flipped_bit_of_one_contribution_changes_the_result(
    example: str, role: int, bundle: Bundle, reference: References, tmp_path: Path
) -> None:
    roles, steps = (3, QUICK[example])
    path, expected = bundle(example, roles=roles), reference(example, steps)
    made: list[Corrupting] = []
    run_roles(path, tmp_path / "run", steps, {role: tampered(Corrupting, made)})
    assert [m.flipped for m in made] == [1]
    run = Run(tmp_path / "run")
    assert len(run.states) == 1, "all roles got the same wrong result"
    assert run.states != expected.states
    if "loss" in run.steps()[0]:
        same = [a["loss"] == b["loss"] for a, b in zip(run.steps(), expected.steps(), strict=True)]
        assert same.index(False) >= 3, "what came before the flipped bit is the same"


def test_roles_in_one_process_untampered_have_the_same_bits(
    bundle: Bundle, reference: References, tmp_path: Path
) -> None:
    """So that it is the flipped bit that changes the result above, and not the way in which the test runs roles."""
    ends = run_roles(bundle("digits_mlp", roles=3), tmp_path / "run", 20, {})
    assert [end.step for end in ends] == [20, 20, 20]
    assert Run(tmp_path / "run").states == reference("digits_mlp", 20).states


def test_a_role_that_heard_wrongly_is_found_out(bundle: Bundle, tmp_path: Path) -> None:
    made: list[Corrupting] = []
    ends = run_roles(bundle("digits_mlp", roles=3), tmp_path / "run", 20, {2: tampered(Deaf, made)})
    assert [m.flipped for m in made] == [1]
    assert isinstance(ends[0], KernelFailed)
    assert len(Run(tmp_path / "run").states) == 2


# ---------------------------------------------------------------------- everything
CHAR_GPT = [  # every number of roles, threads and every shares at least once; a step takes long
    Sharing((32,), None, 2),
    Sharing((16, 16), None, 2),
    Sharing((11, 11, 10)),
    Sharing((7, 7, 6, 6, 6)),
    Sharing((4,) * 8),
    Sharing((12, 20), (3, 5), 2),
    Sharing((3, 7, 22), (1, 2, 7)),
]
EXAMPLES = ("digits_mlp", "digits_cnn", "kmeans_digits", "hybrid", "char_gpt")
MATRIX = [(e, s) for e in EXAMPLES for s in (CHAR_GPT if e == "char_gpt" else sharings((1, 2)))]


@pytest.mark.slow
@pytest.mark.parametrize(("example", "sharing"), MATRIX, ids=str)
def test_any_sharing_for_100_steps(
    example: str, sharing: Sharing, bundle: Bundle, reference: References, tmp_path: Path
) -> None:
    compare(example, LONG, sharing, bundle, reference, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_stopped_after_40_of_100_steps_and_resumed_by_others(
    example: str, bundle: Bundle, reference: References, tmp_path: Path
) -> None:
    first, second = Sharing((11, 11, 10)), Sharing((7, 7, 6, 6, 6))
    resumed(bundle, example, tmp_path, first, STOP, second, LONG, reference)


@pytest.mark.slow
def test_char_gpt_has_its_shipped_shape(bundle: Bundle) -> None:
    shapes = {s.name: s.shape for s in read_bundle(bundle("char_gpt")).manifest.states}
    assert shapes["embed"] == (256, 64)
    assert {shape[0] for name, shape in shapes.items() if name.endswith("qkv")} == {4}
