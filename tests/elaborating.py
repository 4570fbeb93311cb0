"""Small systems for the front end's tests: elaborate a text, run its functions in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from alphac.frontend.elaborate import elaborate
from alphac.frontend.parse import parse
from alphac.ir.core import Module
from alphac.ir.interpret import interpret
from alphac.ir.passes.differentiate import Differentiate
from alphac.ir.passes.expand import Expand
from alphac.ir.passes.simplify import Simplify
from alphac.ir.verify import verify

HERE = Path(__file__).parent
HEAD = """
system s
dim pixels = 6, hidden = 4, classes = 3
dim batch = 8
grain 4 of batch
"""
DATA = """
data d from "d.npz" {
    image: f32[pixels] = images
    label: i32[]       = labels
    shuffle seed 1
}
"""


def module_of(text: str, directory: Path = HERE, **overrides: str) -> Module:
    """The verified IR of a text, differentiated and simplified. HEAD and DATA are put before it."""
    if not (directory / "d.npz").exists() and directory != HERE:
        write_data(directory)
    module = elaborate(parse(text, "s.alpha"), overrides=overrides, directory=directory)
    verify(module)
    for run_pass in (Differentiate(), Expand(), Simplify()):
        module = run_pass.run(module)
        verify(module)
    return module


def write_data(directory: Path) -> dict[str, Any]:
    """`d.npz`: images f32[20, 6], labels i32[20]."""
    random = np.random.default_rng(0)
    arrays = {
        "images": random.standard_normal((20, 6)).astype(np.float32),
        "labels": (np.arange(20) % 3).astype(np.int32),
    }
    np.savez(directory / "d.npz", **arrays)
    return arrays


class System:
    """A module with the current version of its states."""

    def __init__(self, text: str, directory: Path, **overrides: str) -> None:
        self.data = write_data(directory)
        self.module = module_of(text, directory, **overrides)
        self.states: dict[str, Any] = {}
        self.states = {name: value for (_, name), value in self._run("initialize").items()}
        self.steps = 0

    def _run(self, name: str, **given: Any) -> dict[tuple[str, str], Any]:
        function = self.module.functions[name]
        inputs = []
        for port, value in zip(function.arguments, function.block.arguments, strict=True):
            if port.kind == "state":
                inputs.append(self.states[port.name])
            elif port.kind == "column":
                rows = self.data[self._source(port.name)]
                inputs.append(np.resize(rows[given["rows"]], value.type.shape))
            elif port.kind == "sample":
                rows = self.data[self._source(port.name.replace(".train", "").replace(".test", ""))]
                inputs.append(rows[: dict(port.attributes)["count"]])
            elif port.kind == "total":
                start = dict(port.attributes)["start"]
                inputs.append(given["totals"].get(port.name, np.full(value.type.shape, start)))
            elif port.kind == "input":
                inputs.append(given[port.name])
            else:
                inputs.append(np.asarray(given[port.kind]))
        results = interpret(function, inputs)
        return {(p.kind, p.name): r for p, r in zip(function.results, results, strict=True)}

    def _source(self, port: str) -> str:
        data, column = port.split(".", 1)
        return next(c.source for c in self.module.data[data].columns if c.name == column)

    def step(self, rows: slice = slice(0, 8), **given: Any) -> dict[str, float]:
        """One training step; its losses."""
        results = self._run("step", rows=rows, step=self.steps, **given)
        self.steps += 1
        self.states.update({name: value for (kind, name), value in results.items() if kind == "state"})
        return {name: float(value) for (kind, name), value in results.items() if kind == "loss"}

    def evaluate(self, name: str, count: int = 20, batch: int = 8) -> float:
        """A metric over the first `count` rows, the last batch ragged."""
        totals: dict[str, Any] = {}
        for start in range(0, count, batch):
            valid = min(batch, count - start)
            results = self._run(f"evaluate.{name}", rows=slice(start, start + valid), valid=valid, totals=totals)
            totals = {port: value for (_, port), value in results.items()}
        (metric,) = self._run(f"finish.{name}", totals=totals, count=count).values()
        return float(metric)

    def region(self, name: str, **inputs: Any) -> list[Any]:
        """The outputs of a region."""
        return list(self._run(f"region.{name}", **inputs).values())
