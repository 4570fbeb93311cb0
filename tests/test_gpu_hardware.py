"""On an NVIDIA or AMD GPU: every form of a kernel, every op, and 50 steps of every example give the bits of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from everyop_bits import check_bits
from everyop_cases import Case as OpCase
from everyop_native import Batch, collected_cases
from everyop_table import CASES
from hardware import described, exact, hardware
from running import Run, assert_same_bits, run_roles
from session import Session
from shipped import EVERYWHERE
from test_kernels import CONTRACTIONS, REDUCTIONS, SPECIALS, Case, function_of, same_bits
from test_matrix import PRODUCTS
from test_matrix import found as products

from alphac.backends.registry import host_target
from alphac.pipeline import Plan, compile_file

if isinstance(described(), str):
    pytest.skip(str(described()), allow_module_level=True)

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS = 50
pytestmark = pytest.mark.gpu


def compiled(example: str, out: Path, *names: str) -> Path:
    """An example's bundle for equal roles on these targets."""
    source = EXAMPLES / example / f"{example}.alpha"
    return compile_file(source, out=out / "-".join(names), plan=Plan((Fraction(1),) * len(names), names)).path


@pytest.mark.parametrize("case", [*REDUCTIONS, *CONTRACTIONS, *SPECIALS], ids=str)
def test_every_form_has_the_oracles_bits(case: Case) -> None:
    same_bits(function_of([case]), (1, 2, 5), name=exact())


@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
def test_matrix_instructions_multiply_what_is_rounded_to_bf16(shape: tuple) -> None:
    """As the double of each instruction does; sums inside it may be cut off rather than rounded."""
    for part, wanted, size in products(shape, hardware(), (3, 5)):
        assert np.all(np.abs(part - wanted) <= size * 2.0**-18)


@pytest.fixture(scope="module")
def gpu(request: pytest.FixtureRequest) -> Iterator[Batch]:
    """The collected cases, compiled together."""
    collected = {id(case) for case, file in collected_cases(request.session) if file == request.path}
    with Batch({str(c): c.function for c in CASES if id(c) in collected}, exact()) as batch:
        yield batch


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_op(case: OpCase, gpu: Batch) -> None:
    check_bits(gpu, str(case), case.given(0), case.bits, case.shards, threads=(1,))


@pytest.mark.parametrize("example", EVERYWHERE)
def test_an_example_learns_what_it_learns_on_the_cpu(example: str, tmp_path: Path) -> None:
    host, card = (compiled(example, tmp_path, t.name) for t in (host_target(), hardware()))
    with Session(host) as cpu, Session(card) as gpu_:
        steps = min(STEPS, cpu.whole)
        assert gpu_.train(steps) == cpu.train(steps)
        found = gpu_.states()
        differing = [name for name, state in cpu.states().items() if found[name].tobytes() != state.tobytes()]
        assert not differing, f"these differ: {', '.join(differing)}"
        assert gpu_.evaluate() == cpu.evaluate()


def test_a_gpu_and_a_cpu_learn_together(tmp_path: Path) -> None:
    host, card = host_target().name, hardware().name
    runs: list[Run] = []
    for names in ((host, host), (host, card), (card, host)):
        run_roles(compiled("digits_mlp", tmp_path, *names), out := tmp_path / "run" / "-".join(names), STEPS, {})
        runs.append(Run(out))
        assert_same_bits(runs[-1], runs[0])
