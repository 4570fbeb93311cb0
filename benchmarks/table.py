"""The table of the reference workloads, as Markdown.

    python benchmarks/table.py [--run] [FILE.json …]

FILE.json are reports of `alphac bench --json`, one per workload. With --run the workloads are measured first, against
torch and jax on 2 threads and on 1: some minutes, alone on the machine. Prints one table per number of threads, with
the machine's name and the date, and writes records/workloads-DATE.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recording import write_record

from alphac.bench.table import MIB, duration

HERE = Path(__file__).parent
WORKLOADS = sorted((HERE / "workloads").glob("w*.alpha"))
THREADS = "2,1"
HEAD = (
    "workload",
    "alphac",
    "best peer",
    "its time",
    "faster",
    "of the limit",
    "memory",
    "leanest peer",
    "start",
    "compile",
)
Record = dict[str, Any]


def run(folder: Path, environment: dict[str, str]) -> list[Path]:
    """Measure every workload."""
    files: list[Path] = []
    for source in WORKLOADS:
        file = folder / f"{source.stem}.json"
        command = [sys.executable, "-m", "alphac.cli", "bench", str(source), "--against", "torch,jax"]
        command += ["--threads", THREADS, "--kernels", "--json", str(file)]
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
        files.append(file)
    return files


def table(reports: Sequence[Record], threads: int) -> Iterator[str]:
    """The lines of one table."""
    yield "| " + " | ".join(HEAD) + " |"
    yield "|" + "---|" * len(HEAD)
    for report in reports:
        for contest in report["contests"]:
            if contest["threads"] == threads:
                yield "| " + " | ".join(row(report, contest)) + " |"


def row(report: Record, contest: Record) -> Iterator[str]:
    """The cells of one workload."""
    ours = next(e for e in contest["entries"] if not e["peer"])
    step = ours["step"]["median"]
    yield report["system"]
    yield duration(step)
    if "best_peer" in contest:
        best = next(e for e in contest["entries"] if e["name"] == contest["best_peer"])
        least, most = contest["ratio_spread"]
        yield best["name"]
        yield duration(best["step"]["median"])
        yield f"**{contest['ratio_to_best_peer']:.2f} ×** ({least:.2f} – {most:.2f})"
    else:
        yield from ("", "", "")
    yield f"{100 * contest['limit_seconds'] / step:.0f} %"
    yield f"{ours['peak'] / MIB:.0f} MiB"
    yield (
        f"{100 * contest['memory_to_leanest_peer']:.0f} % of {contest['leanest_peer']}"
        if "best_peer" in contest
        else ""
    )
    yield duration(ours["start"]["median"]) if ours["start"] is not None else ""
    compiling = report["compiling"]
    yield f"{compiling['cold']:.1f} s, cached {compiling['cached']:.1f} s" if compiling is not None else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = [*options.files, *(run(Path(folder), dict(os.environ)) if options.run else [])]
        reports: list[Record] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    if not reports:
        parser.error("name reports, or measure with --run")
    reports.sort(key=lambda report: report["system"])
    first = reports[0]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    print(f"{first['machine']['processor']}, {first['target']}, {first['date'][:10]}; {versions}")
    for threads in sorted({c["threads"] for report in reports for c in report["contests"]}, reverse=True):
        print(f"\n{threads} thread{'s' * (threads != 1)}:\n")
        print("\n".join(table(reports, threads)))
    print(f"\nwrote {write_record('workloads', {'reports': reports})}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
