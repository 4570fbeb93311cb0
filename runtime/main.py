"""A role's process: `python BUNDLE --role K`, and how the launcher starts it.

Exit codes: 0 done, 1 the user's input, 2 usage, 4 internal, 10 to 19 the cause of failure (errors.py).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

USAGE = """usage: python BUNDLE --role K [options]

  --role K         which role of the bundle to run
  --join ADDRESS   where role 0 listens; role 0 itself listens there
  --steps N        stop after so many steps in all
  --threads T      threads of this role (default 1)
  --out RUNDIR     where role 0 writes the run (default runs/NAME-N)
  --resume WHAT    a checkpoint's path, or latest
  --emulated HOW   the processor is emulated: the run's record says so, and how
"""
NUMBERS = {"--role", "--steps", "--threads", "--listener", "--events", "--control"}
WORDS = {"--join", "--out", "--resume", "--emulated"}
INTERNAL = 4


class UsageError(Exception):
    """Arguments that are not understood."""


def main(argv: list[str]) -> int:
    """Run one role: `role BUNDLE --role K …`. Returns the exit code."""
    try:
        bundle, given = parse(argv)
    except UsageError as error:
        print(f"{error}\n\n{USAGE}", file=sys.stderr, end="")
        return 2
    if bundle is None:
        print(USAGE, end="")
        return 0
    return run(bundle, given)


def parse(argv: list[str]) -> tuple[Path | None, dict[str, str]]:
    """The bundle and the options; None when help is asked for. Raises UsageError."""
    words = argv[1:] if argv[:1] == ["role"] else argv
    bundle: Path | None = None
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            return None, {}
        if name in NUMBERS | WORDS:
            value = value if equals else next(rest, "")
            if name in given or not value:
                raise UsageError(f"{name} is given twice" if name in given else f"{name} lacks its value")
            if name in NUMBERS and not (value.isascii() and value.isdigit() and len(value) < 19):
                raise UsageError(f"{name} takes a number, not `{value}`")
            given[name] = value
        elif word.startswith("-") or bundle is not None:
            raise UsageError(f"`{word}` is not understood")
        else:
            bundle = Path(word)
    if bundle is None or "--role" not in given:
        raise UsageError("BUNDLE and --role are needed")
    if not 1 <= int(given.get("--threads", 1)) <= 256:
        raise UsageError("--threads takes a number from 1 to 256")
    return bundle, given


def address(text: str) -> tuple[str, int]:
    """HOST:PORT. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--join takes HOST:PORT, not `{text}`")
    return host.strip("[]"), int(port)


def run(bundle: Path, given: dict[str, str]) -> int:
    """Run the role that the options name."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy multiplies no matrices here: no threads for it
    from alphac.runtime.errors import Interrupted, RuntimeFault
    from alphac.runtime.events import Failed, Wire
    from alphac.runtime.role import Options, Role

    try:
        join = address(given["--join"]) if "--join" in given else None
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2

    def number(name: str) -> int | None:
        return int(given[name]) if name in given else None

    tell = Wire(number("--events"))
    options = Options(
        bundle=bundle,
        role=int(given["--role"]),
        join=join,
        listener=number("--listener"),
        steps=number("--steps"),
        threads=int(given.get("--threads", 1)),
        out=Path(given["--out"]) if "--out" in given else None,
        resume=given.get("--resume"),
        emulated=given.get("--emulated", ""),
    )
    role = Role(options, tell)
    _listen(role, number("--control"))
    launched = "--events" in given
    try:
        finished = role.run()
    except RuntimeFault as fault:
        if not launched:
            print(f"error: {fault}", file=sys.stderr)
        return fault.exit_code
    except MemoryError:
        fault = {"fault": "OutOfMemory", "message": "this host has no memory left", "role": options.role}
        tell(Failed(options.role, dict(fault)))
        print(f"role {options.role}: out of memory", file=sys.stderr)
        return 16
    except Exception as error:
        import traceback

        traceback.print_exc()
        fault = {"fault": "RuntimeFault", "message": f"internal error: {error!r}", "role": options.role}
        tell(Failed(options.role, dict(fault)))
        return INTERNAL
    return Interrupted.exit_code if finished.stopped else 0


def _listen(role: object, control: int | None) -> None:
    """Let Ctrl-C, or the launcher through the descriptor `control`, ask for an orderly stop. When the other end of
    `control` is closed the launcher is dead, and this process ends at once."""
    from alphac.runtime.role import Role

    assert isinstance(role, Role)
    asked = [False]

    def stop(number: int, frame: FrameType | None) -> None:
        if asked[0]:
            os._exit(128 + number)  # the user insists
        asked[0] = True
        role.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if control is None:
        return

    def obey() -> None:
        while os.read(control, 1):
            role.request_stop()
        os._exit(17)

    threading.Thread(target=obey, name="control", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
