"""Makes docs/demo.svg: what `make demo` prints, recorded from a real run.

python scripts/make_picture.py
"""

from __future__ import annotations

import re
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console

from alphac import pipeline
from alphac.runtime.launch.local import run_local
from alphac.show import Progress

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("examples/digits_mlp/digits_mlp.alpha")
SHOWN = 3  # evaluations shown at each end; a run has one per epoch


def main() -> None:
    """Compile and train the digits example on two roles, and write down what the terminal shows."""
    console = Console(record=True, width=96, highlight=False, force_terminal=True)
    with tempfile.TemporaryDirectory() as work:
        bundle, run = Path(work) / "digits_mlp.bundle", Path(work) / "run"
        console.print(f"$ alphac compile {SOURCE} --roles 2")
        compiled = pipeline.compile_file(ROOT / SOURCE, out=bundle, plan=pipeline.Plan.of(roles=2))
        console.print(f"wrote digits_mlp.bundle  ({compiled.summary})\n")
        console.print("$ alphac run digits_mlp.bundle")
        recorder = Console(record=True, width=96, highlight=False, file=StringIO())
        with Progress(recorder) as progress:
            result = run_local(bundle, out=run, on_event=progress.event)
        lines = [line.replace(work, "runs") for line in recorder.export_text().splitlines() if line.strip()]
        lines = [line for line in lines if "checkpoint" not in line and "━" not in line]
        console.print("\n".join([*lines[: SHOWN + 1], "…", *lines[-SHOWN:]]), markup=False)
        console.print(f"[bold]accuracy {result.values['accuracy']:.4f}[/]")
        console.print(f"{result.steps} steps in {result.seconds:.1f} s")
    svg = console.export_svg(title="alphac")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # no fonts from elsewhere
    (ROOT / "docs" / "demo.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
