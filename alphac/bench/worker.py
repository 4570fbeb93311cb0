"""What runs in a measured process: it trains when it is told to, and says how long that took.

    python -m alphac.bench.worker SPEC      SPEC is JSON: see `Spec`

Commands come as JSON lines on standard input, answers go as JSON lines to what was standard output. A fault of the
runtime is answered as such; whatever else goes wrong ends the process with a traceback.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

KINDS = ("alphac", "torch", "jax", "export", "kernels", "roofline")
INSTRUMENTED = "instrumented.o"


@dataclass(frozen=True)
class Spec:
    """What a process is for.

    kind       one of KINDS: alphac and the peers take part in a contest, the others answer once and end
    path       the bundle, or the peer's file
    threads    how many it may use
    directory  the contest's: what peers start from
    variant    of a peer
    steps      how many first losses are told
    launches, stride   of instrumented code, which lies in the directory
    began      when the process was started, by the system's monotonic clock
    """

    kind: str
    path: str = ""
    threads: int = 1
    directory: str = ""
    variant: str = ""
    steps: int = 1
    launches: int = 0
    stride: int = 0
    began: float = 0.0


class Contender(Protocol):
    """A training loop. `advance` takes multiples of `quantum`; `loading` is what its data took, in seconds."""

    quantum: int
    loading: float

    def first(self, count: int) -> list[float]: ...

    def advance(self, count: int) -> float: ...


class Channel:
    """Lines of JSON. What others print goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def tell(self, answer: dict[str, Any]) -> None:
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()

    def commands(self) -> Any:
        for line in sys.stdin:
            yield json.loads(line)


def contender(spec: Spec) -> Contender:
    """The training loop of a contestant."""
    if spec.kind == "alphac":
        from alphac.bench import ours

        return ours.Contender(Path(spec.path), spec.threads)
    if spec.kind == "torch":
        from alphac.bench import torch_peer

        return torch_peer.Contender(Path(spec.path), spec.variant, Path(spec.directory), spec.threads)
    from alphac.bench import jax_peer

    return jax_peer.Contender(Path(spec.path), spec.variant, Path(spec.directory), spec.threads)


def compete(spec: Spec, channel: Channel) -> None:
    """Train the first steps, then so many seconds at a time, as often as asked."""
    trainer = contender(spec)
    losses = trainer.first(1)
    cold = time.monotonic() - spec.began
    losses += trainer.first(spec.steps - len(losses)) if spec.steps > len(losses) else []
    channel.tell({"cold": cold, "loading": trainer.loading, "losses": losses})
    clock = Clock(trainer)
    for command in channel.commands():
        if "seconds" in command:
            channel.tell({"step": clock.time(command["mode"], command["seconds"])})
        else:
            channel.tell({"peak": peak_memory()})
            break
    close = getattr(trainer, "close", None)
    if close is not None:
        close()


class Clock:
    """Seconds per step of a training loop, in each of its modes (methods that take a number of steps)."""

    def __init__(self, trainer: Contender) -> None:
        self._trainer = trainer
        self._estimates: dict[str, float] = {}

    def time(self, mode: str, seconds: float) -> float:
        """Run for about so long, after a few steps that do not count."""
        quantum, run = self._trainer.quantum, getattr(self._trainer, mode)
        estimate = self._estimates.get(mode) or self._once(run, quantum)
        self._once(run, max(1, round(seconds / 20 / estimate / quantum)) * quantum)  # warm again
        count = max(1, round(seconds / estimate / quantum)) * quantum
        self._estimates[mode] = self._once(run, count)
        return self._estimates[mode]

    @staticmethod
    def _once(run: Any, count: int) -> float:
        began = time.perf_counter()
        run(count)
        return (time.perf_counter() - began) / count


def peak_memory() -> int:
    """The most bytes that this process ever held; on Linux since it became this program, not the one it was forked
    from."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)


def answer(spec: Spec) -> dict[str, Any]:
    """The answer of a process that is asked once."""
    if spec.kind == "export":
        from alphac.bench import ours

        return {"same": ours.export(Path(spec.path), Path(spec.directory), spec.steps)}
    if spec.kind == "kernels":
        from alphac.bench import kernels

        code = Path(spec.directory) / INSTRUMENTED
        return asdict(kernels.measure(Path(spec.path), code, spec.launches, spec.stride, spec.threads))
    from alphac.bench import roofline

    return asdict(roofline.measure(spec.threads))


def main() -> int:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as a role does
    spec = Spec(**json.loads(sys.argv[1]))
    channel = Channel()
    from alphac.runtime.errors import RuntimeFault

    try:
        if spec.kind in ("alphac", "torch", "jax"):
            compete(spec, channel)
        else:
            channel.tell(answer(spec))
    except RuntimeFault as fault:
        channel.tell({"fault": fault.as_dict()})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
