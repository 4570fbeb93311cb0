"""A report as a picture: step times side by side, and the kernels under the machine's roofline."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from alphac.bench.report import Contest, Report
from alphac.diagnostics import fail

OURS, THEIRS = "#d1495b", "#8d99ae"


def require() -> None:
    """Raises Diagnostics if there is nothing to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise fail("E504", "a plot needs matplotlib", None, "pip install 'alphac[bench]'")


def draw(report: Report, path: Path) -> None:
    """Write the picture; its format is that of the path's suffix. Raises Diagnostics."""
    require()
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plots: Any = plt
    profiled = any(contest.kernels for contest in report.contests)
    rows, columns = len(report.contests), 2 if profiled else 1
    figure, axes = plots.subplots(rows, columns, figsize=(7 * columns, 3.2 * rows), squeeze=False)
    for line, contest in zip(axes, report.contests, strict=True):
        _bars(line[0], contest)
        if profiled:
            _roofline(line[1], contest)
    figure.suptitle(f"{report.system}, {report.machine['processor']}, {report.date[:10]}")
    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise fail("E402", f"{path} cannot be written: {error}", None, "name another file, such as bench.svg") from None
    finally:
        plots.close(figure)


def _bars(axes: Any, contest: Contest) -> None:
    entries = sorted(contest.entries, key=lambda e: -e.step.median)
    milliseconds = [1e3 * e.step.median for e in entries]
    below = [1e3 * (e.step.median - e.step.least) for e in entries]
    above = [1e3 * (e.step.most - e.step.median) for e in entries]
    colours = [THEIRS if e.peer else OURS for e in entries]
    axes.barh([e.name for e in entries], milliseconds, xerr=[below, above], color=colours)
    axes.axvline(1e3 * contest.limit_seconds, color="black", linestyle=":", linewidth=1)
    axes.set_xlabel(f"ms a step, {contest.threads} thread{'s' * (contest.threads != 1)}; dotted: the kernels' limits")


def _roofline(axes: Any, contest: Contest) -> None:
    """Kernels by arithmetic intensity; the area of a point is its share of the step."""
    rows = [row for row in contest.kernels if row.gflops > 0 and row.gbytes > 0]
    reach = [2.0**k for k in range(-6, 11)]
    for size, rate in contest.bandwidth_gbytes.items():
        heights = [min(contest.peak_gflops, rate * x) for x in reach]
        axes.loglog(reach, heights, color="black", linewidth=0.5, label=f"{size >> 10} KiB")
    areas = [600 * row.share + 4 for row in rows]
    axes.scatter([r.gflops / r.gbytes for r in rows], [r.gflops for r in rows], s=areas, color=OURS, alpha=0.6)
    axes.set_xlabel("flop per byte")
    axes.set_ylabel("GFLOP/s")
