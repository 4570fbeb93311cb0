"""`alphac compile --tune`: what is being measured, and what it gained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from alphac import pipeline
from alphac.backends.cache import Cache, cache_directory
from alphac.backends.tune import Tuner
from alphac.compiled import Compiled


def compile_tuned(
    path: Path, out: Path | None, plan: pipeline.Plan, overrides: Mapping[str, str], progress: Console
) -> tuple[Compiled, Tuner]:
    """Compile with the register tiles that are fastest here. Raises Diagnostics."""
    with progress.status("") as status:
        tuner = Tuner(Cache(cache_directory()), lambda text: status.update(f"timing {text}"))
        return pipeline.compile_file(path, out=out, plan=plan, overrides=overrides, tuner=tuner), tuner


def show(tuner: Tuner, out: Console) -> None:
    """Which contraction is cut how, and how much faster that is than what its shape suggests."""
    table = Table("contraction", "tile", "gain", box=None)
    for choice in tuner.choices.values():
        if choice.tile is not None:
            table.add_row(choice.text, "x".join(map(str, choice.tile)), f"{choice.gain - 1:.0%}")
    if table.row_count:
        out.print(table)
    kept = sum(choice.tile is None for choice in tuner.choices.values())
    out.print(f"{len(tuner.choices)} contractions timed, {kept} of them as fast as their shapes suggest")
    for name in sorted(tuner.elsewhere):
        out.print(f"note: this machine does not run {name}: its kernels are not tuned")
