"""A report as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from alphac.bench.report import Contest, Report, Row, Spread

MIB = 1 << 20
WIDTH = 160  # of tables
SMALL = 0.001  # share of a step from which on a kernel is shown


def show(report: Report, console: Console) -> None:
    """Print everything."""
    chosen = f"  {' '.join(report.settings)}" if report.settings else ""
    console.print(f"{report.system}  {report.target}{chosen}  {report.machine['processor']}")
    console.print(
        f"a step: {report.flops / 1e6:,.1f} Mflop, {report.bytes / 1e6:,.1f} MB moved, {report.kernels} kernels"
    )
    if report.compiling is not None:
        console.print(f"alphac compile: {report.compiling.cold:.1f} s, cached {report.compiling.cached:.1f} s")
    if report.losses_compared:
        console.print(
            f"losses of the first {report.losses_compared} steps: within {report.losses_apart:.0e} of each other"
        )
    for contest in report.contests:
        _print(_entries(contest), console)
        _verdict(contest, console)
        if contest.kernels:
            _print(_rows("region", contest.regions), console)
            shown = [row for row in contest.kernels if row.share >= SMALL]
            _print(_rows("kernel", shown), console)
            busy, few = sum(row.share for row in contest.kernels), len(contest.kernels) - len(shown)
            console.print(f"{few} kernels that take less than {100 * SMALL:g} % each are not shown")
            console.print(
                f"{100 - 100 * busy:.1f} % of the time threads wait for each other, or for what is not native"
            )


def _print(table: Table, console: Console) -> None:
    """A table in its full width: on a narrow terminal its lines are cut by the terminal, not its words by us."""
    Console(file=console.file, width=max(console.width, WIDTH)).print(table)


def _entries(contest: Contest) -> Table:
    table = Table(
        title=f"{contest.threads} thread{'s' * (contest.threads != 1)}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("", "step", "spread", "native", "logged", "ratio", "start", "cached", "data", "memory"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for e in sorted(contest.entries, key=lambda e: e.step.median):
        table.add_row(
            e.name,
            duration(e.step.median),
            f"{duration(e.step.least)} – {duration(e.step.most)}",
            *(duration(s.median) if s is not None else "" for s in (e.native, e.logged)),
            _ratio(contest.ratio(e)) if e.peer else "",
            duration(e.start.median) if e.start is not None else "",
            duration(e.restart) if e.restart is not None else "",
            duration(e.loading),
            f"{e.peak / MIB:.0f} MiB",
            style=None if e.peer else "bold",
        )
    return table


def _verdict(contest: Contest, console: Console) -> None:
    ours, best, leanest = contest.ours, contest.best_peer, contest.leanest_peer
    percent = 100 * contest.limit_seconds / ours.step.median
    console.print(
        f"{contest.peak_gflops:.0f} GFLOP/s, {contest.bandwidth_gbytes[max(contest.bandwidth_gbytes)]:.0f} GB/s: "
        f"the kernels' limits add up to {duration(contest.limit_seconds)}, {percent:.0f} % of the step"
    )
    if best is not None and leanest is not None:
        console.print(
            f"{_ratio(contest.ratio(best))} times as fast as {best.name}, the best peer; "
            f"{100 * ours.peak / leanest.peak:.0f} % of the memory of {leanest.name}, the leanest"
        )


def _rows(title: str, rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in (title, "ops", "where", "calls", "time", "share", "GFLOP/s", "GB/s", "of limit"):
        table.add_column(name, justify="left" if name in (title, "ops", "where") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            row.op if row.span else "",
            row.span.rpartition("/")[2],
            str(row.calls),
            duration(row.seconds),
            f"{100 * row.share:.1f} %",
            f"{row.gflops:.1f}",
            f"{row.gbytes:.1f}",
            f"{row.percent:.0f} %",
        )
    return table


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            value = seconds * factor
            return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"
    raise AssertionError


def _ratio(ratio: Spread) -> str:
    return f"{ratio.median:.2f} ({ratio.least:.2f} – {ratio.most:.2f})"
