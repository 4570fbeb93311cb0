"""A run's progress on a terminal, and its plain-line form where there is none."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from alphac.runtime.launch.local import RunResult


class Progress:
    """Shows the events of a run: a bar of steps with the loss, a line per evaluation and checkpoint."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: Any = None

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def event(self, event: Any) -> None:
        """Show one event of `alphac.runtime.launch.local`."""
        match type(event).__name__:
            case "Started":
                shards = " + ".join(str(n) for n in event.shards)
                self._console.print(
                    f"[bold]{event.system}[/]  {len(event.shards)} role{'s' * (len(event.shards) != 1)}"
                    f"  shards {shards}  {event.threads} thread{'s' * (event.threads != 1)} each",
                    markup=True,
                )
                self._task = self._bar.add_task("steps", total=event.total, completed=event.step, loss="")
            case "Step":
                losses = "  ".join(f"{name} {value:.4f}" for name, value in event.losses.items())
                self._bar.update(self._task, completed=event.step, loss=losses)
            case "Evaluated":
                epoch = f"epoch {event.epoch:>3}  " if event.epoch is not None else ""
                values = "  ".join(f"{name} {value:.4f}" for name, value in event.values.items())
                self._console.print(f"{epoch}step {event.step:>6}  {values}")
            case "Checkpointed":
                self._console.print(f"[dim]step {event.step:>6}  checkpoint {escape(event.path)}[/]", markup=True)
            case _:
                pass

    def summary(self, result: RunResult) -> None:
        """The last lines: what was reached and where it lies, or what failed."""
        if result.error:
            asked = type(result.fault).__name__ == "Interrupted"
            words = escape(result.error)
            self._console.print(words if asked else f"[red]failed[/]: {words}", markup=True)
        if result.values:
            values = "  ".join(f"[bold]{name} {value:.4f}[/]" for name, value in result.values.items())
            self._console.print(values, markup=True)
        self._console.print(f"{result.steps} steps in {result.seconds:.1f} s, run directory {result.directory}")
