"""Sums of many rows are kernels of their own under their combines, and threads run chains of kernels by groups of
shards."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scheduling import Draft
from test_kernels import same_bits

from alphac.backends import segment
from alphac.backends.emit import lower_programs
from alphac.backends.registry import host_target
from alphac.ir.core import Function
from alphac.ir.passes import partials
from alphac.ir.passes.meetings import by_shards, meets
from alphac.ir.passes.project import schedule
from alphac.ir.schedule import Launch
from alphac.ir.typesys import F32, Dim, TensorType

BATCH, ROWS, A, B = Dim("batch", 48, 8), Dim("rows", 40), Dim("a", 16), Dim("b", 24)


def chain() -> Function:
    """A product, what is made of it, and sums of that over the shards, with few results; one needs a parameter that is
    laid out anew first."""
    draft = Draft()
    b = draft.b
    x = draft.argument("column", "x", TensorType(F32, (BATCH, ROWS, A)))
    w, v = draft.state("w", A, B), draft.state("v", B)
    h = b("relu", b("contract", x, w, dims=(BATCH, ROWS, B)))
    top = b("reduce_max", h, over=("rows",))
    y = b("mul", h, b.broadcast(b("add", top, b.broadcast(b("exp", v), (BATCH, B))), (BATCH, ROWS, B)))
    draft.result("output", "d_v", b.combine(b("reduce_sum", y, over=("batch", "rows"))))
    draft.result("output", "d_w", b.combine(b("contract", x, y, dims=(A, B))))
    return draft.function()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that small kernels reach."""
    monkeypatch.setattr(partials, "MUCH", 0)
    monkeypatch.setattr(segment, "NEAR", 8 << 10)


def names(function: Function) -> list[str]:
    steps = schedule(function).steps
    return [s.kernel.anchor.name for s in steps if isinstance(s, Launch) and s.kernel.anchor is not None]


def test_sums_of_few_rows_are_made_under_their_combine():
    assert names(chain()).count("combine_sum") == 2
    assert "reduce_sum" not in names(chain())


@pytest.mark.usefixtures("small")
def test_sums_of_many_rows_are_apart():
    found = names(chain())
    assert found.count("combine_sum") == 2
    assert "reduce_sum" in found and found.count("contract") == 2


@pytest.mark.usefixtures("small")
def test_threads_go_on_with_their_shards_to_the_last_sum():
    """And meet only behind what the chain needs that has no shards, and before the combines."""
    steps = schedule(chain()).steps
    own = [by_shards(s) for s in steps]
    inside = range(own.index(True), len(own) - 1 - own[::-1].index(True))
    assert [m.name for i, m in enumerate(meets(steps)) if i in inside].count("ALWAYS") == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shares", [(8,), (1, 2, 5)], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_groups_of_shards_keep_the_bits(shares: Sequence[int], threads: int):
    assert "%shard" in lower_programs([schedule(chain())], host_target()).segments
    same_bits(chain(), shares, threads)
