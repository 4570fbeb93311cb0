"""The reference workloads and their peers do the same work: from alphac's first values, on its batches, in every
variant, the losses of the first 20 steps are ours."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from alphac.bench.command import PEERS, Bench, Options, same_work
from alphac.bench.contest import hold
from alphac.bench.peers import FRAMEWORKS, installed

WORKLOADS = sorted((Path(__file__).parents[1] / "benchmarks" / "workloads").glob("w*.alpha"))
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not all(map(installed, FRAMEWORKS)), reason="the extra `peers` is not installed"),
]


@pytest.mark.parametrize("source", WORKLOADS, ids=lambda path: path.stem)
def test_first_losses_are_ours(source: Path, tmp_path: Path) -> None:
    bench = Bench(Options(source, against=PEERS), tmp_path, lambda _: None)
    bench.open()
    (ours,), theirs = bench.contestants(threads=2)
    with ThreadPoolExecutor(2) as pool:  # two processes at a time
        list(pool.map(lambda contestant: hold([contestant], 0, 0, lambda _: None), [*theirs, ours]))
    assert len(theirs) >= 5
    assert bench.compared == 20
    for peer in theirs:
        same_work(ours, peer, bench.compared)
