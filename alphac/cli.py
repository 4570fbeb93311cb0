"""The command line: the only place where everything is wired together.

Exit codes: 0 done, 1 the user's input, 2 usage, 3 a role failed, 4 internal; 10 to 19 name a role's cause of failure.
"""

from __future__ import annotations

import errno
import shlex
import sys
import traceback
from collections.abc import Callable, Collection
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

app = typer.Typer(
    name="alphac",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Compile a learning system into one executable per role, and run it on any fleet with the same bits.",
)
fleets = typer.Typer(no_args_is_help=True, help="Fleet files: write one for this machine, show one.")
app.add_typer(fleets, name="fleet")
# The base of typer's usage errors, wherever this version of typer keeps it.
UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]
err = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False, soft_wrap=True, markup=False)

File = Annotated[Path, typer.Argument(help="the .alpha file", metavar="FILE")]
BundlePath = Annotated[Path, typer.Argument(help="the bundle's directory", metavar="BUNDLE")]
FleetPath = Annotated[Path, typer.Argument(help="the fleet file (TOML)", metavar="FLEET")]
Set = Annotated[list[str], typer.Option("--set", help="override a `let`: name=value", metavar="NAME=VALUE")]


def overrides(settings: list[str]) -> dict[str, str]:
    """`--set` options as a mapping. Raises typer.BadParameter for anything but name=value, each name once."""
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise typer.BadParameter(f"--set takes name=value, not `{setting}`")
        if name.strip() in found:
            raise typer.BadParameter(f"--set {name.strip()} is given twice")
        found[name.strip()] = value.strip()
    return found


def emulators(settings: list[str]) -> dict[str, list[str]]:
    """`--emulate` options as commands by target. Raises typer.BadParameter for anything but target=command, each target
    once."""
    found: dict[str, list[str]] = {}
    for setting in settings:
        name, _, command = setting.partition("=")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise typer.BadParameter(f"--emulate {name}: {error}") from None
        if not name or not words:
            raise typer.BadParameter(f"--emulate takes target=command, not `{setting}`")
        if name in found:
            raise typer.BadParameter(f"--emulate {name} is given twice")
        found[name] = words
    return found


def proportions(text: str | None) -> list[Fraction] | None:
    """`--shares 3,5` as numbers. Raises typer.BadParameter for anything but positive numbers."""
    if text is None:
        return None
    try:
        shares = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"--shares takes positive numbers such as 3,5, not `{text}`") from None
    if any(share <= 0 for share in shares):
        raise typer.BadParameter(f"--shares takes positive numbers such as 3,5, not `{text}`")
    return shares


@app.command("compile")
def compile_(
    file: File,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="bundle directory; default NAME.bundle")] = None,
    fleet: Annotated[Path | None, typer.Option(help="fleet file (TOML): one role per endpoint")] = None,
    roles: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="number of equal local roles")] = None,
    shares: Annotated[str | None, typer.Option(help="proportions of the roles' work, such as 3,5")] = None,
    settings: Set = [],  # noqa: B006  typer wants a list
    emit: Annotated[str | None, typer.Option(help="print a stage instead of writing a bundle")] = None,
    tune: Annotated[bool, typer.Option("--tune", help="choose how products are cut by timing them here")] = False,
) -> None:
    """Compile FILE into a bundle: one executable per role."""
    from alphac import pipeline

    given = proportions(shares)
    if given and roles and len(given) != roles:
        raise typer.BadParameter(f"--shares names {len(given)} roles, --roles {roles}")
    if fleet and (given or roles):
        raise typer.BadParameter("--fleet says who takes part; leave out --roles and --shares")
    if emit is not None and emit not in pipeline.STAGES:
        raise typer.BadParameter(f"--emit takes one of {', '.join(pipeline.STAGES)}, not `{emit}`")
    plan = pipeline.Plan.of(fleet=fleet, roles=roles, shares=given)
    if emit is not None:
        sys.stdout.write(pipeline.emit(file, emit, plan=plan, overrides=overrides(settings)))
        return
    if tune:
        from alphac import tuning

        bundle, tuned = tuning.compile_tuned(file, output, plan, overrides(settings), err)
        tuning.show(tuned, out)
    else:
        bundle = pipeline.compile_file(file, out=output, plan=plan, overrides=overrides(settings))
    out.print(f"wrote {bundle.path}  ({bundle.summary})")


@app.command()
def explain(
    file: File,
    fleet: Annotated[Path, typer.Option(help="fleet file (TOML) with hosts")],
    settings: Set = [],  # noqa: B006
    json_file: Annotated[Path | None, typer.Option("--json", help="write the plans here, for `alphac diff`")] = None,
) -> None:
    """Say who would do what of FILE on a fleet, why, and what each factor costs."""
    from alphac import explain as explaining
    from alphac import pipeline

    made = pipeline.explain(file, plan=pipeline.Plan.of(fleet=fleet), overrides=overrides(settings))
    if json_file is not None:
        write_text(json_file, made.as_json())
    explaining.show(made, out)


@fleets.command("detect")
def fleet_detect(
    output: Annotated[Path | None, typer.Option("-o", "--output", help="write it here; default: print it")] = None,
) -> None:
    """Write a fleet file for this machine: cores, caches, instruction sets, accelerators."""
    from alphac.detect import detect, fleet_text

    text = fleet_text(detect())
    if output is None:
        sys.stdout.write(text)
        return
    if output.exists():
        from alphac.diagnostics import fail

        raise fail("E401", f"{output} exists already", None, "remove it, or give another file with -o")
    write_text(output, text)
    out.print(f"wrote {output}")


@fleets.command("show")
def fleet_show(fleet: FleetPath) -> None:
    """Show a fleet file: hosts, endpoints, links, and what was measured."""
    from alphac.fleet import read_fleet
    from alphac.fleet_show import show

    show(read_fleet(fleet), out)


@app.command()
def calibrate(
    fleet: FleetPath,
    endpoints: Annotated[
        list[str], typer.Option("--endpoint", help="which ones; default: all of this machine", metavar="NAME")
    ] = [],  # noqa: B006
) -> None:
    """Time kernels and the loopback on this machine's endpoints of FLEET, and keep the rates beside it."""
    from alphac import calibration

    with err.status("") as status:
        path = calibration.run(fleet, tuple(endpoints), status.update)
    out.print(f"wrote {path}")


@app.command()
def diff(
    one: Annotated[Path, typer.Argument(help="a plan (explain --json) or a bundle", metavar="PLAN")],
    other: Annotated[Path, typer.Argument(help="another", metavar="PLAN")],
) -> None:
    """Say what two plans do otherwise."""
    from alphac import explain as explaining

    found = list(explaining.differences(explaining.read_plan(one), explaining.read_plan(other)))
    out.print("\n".join(found) if found else "no difference")


@app.command()
def check(file: File, settings: Set = []) -> None:  # noqa: B006
    """Check FILE: names, types, shapes, gradients, data. Writes nothing."""
    from alphac import pipeline

    module = pipeline.check(file, overrides=overrides(settings))
    out.print(f"{file}: ok ({module})")


@app.command()
def inspect(
    bundle: BundlePath,
    role: Annotated[int | None, typer.Option(min=0, help="one role's local protocol and plan")] = None,
) -> None:
    """Say what a bundle holds: roles, shares, memory, kernels, protocol."""
    from alphac import inspect as inspecting

    out.print(inspecting.describe(bundle, role))


@app.command()
def run(
    bundle: BundlePath,
    steps: Annotated[int | None, typer.Option(min=0, help="stop after so many steps in all")] = None,
    threads: Annotated[int, typer.Option(min=1, max=256, help="threads per role")] = 1,
    output: Annotated[Path | None, typer.Option("--out", help="run directory; default runs/NAME-N")] = None,
    resume: Annotated[str | None, typer.Option(help="a checkpoint's path, or `latest` (in --out)")] = None,
    emulate: Annotated[
        list[str], typer.Option(help="start roles of a target through an emulator", metavar="TARGET=COMMAND")
    ] = [],  # noqa: B006
) -> None:
    """Start every role of BUNDLE on this machine and train."""
    from alphac import show
    from alphac.runtime.launch.local import run_local

    commands = emulators(emulate)
    with show.Progress(out) as progress:
        result = run_local(
            bundle,
            steps=steps,
            threads=threads,
            out=output,
            resume=resume,
            emulators=commands,
            on_event=progress.event,
        )
    progress.summary(result)
    if result.exit_code:
        raise typer.Exit(3)


@app.command()
def role(
    bundle: BundlePath,
    number: Annotated[int, typer.Option("--role", min=0, help="which role")],
    join: Annotated[str | None, typer.Option(help="HOST:PORT of role 0; role 0 listens there")] = None,
    steps: Annotated[int | None, typer.Option(min=0)] = None,
    threads: Annotated[int, typer.Option(min=1, max=256)] = 1,
    output: Annotated[Path | None, typer.Option("--out", help="run directory (role 0 writes it)")] = None,
    resume: Annotated[str | None, typer.Option(help="a checkpoint's path, or `latest`")] = None,
) -> None:
    """Run one role of BUNDLE here, in this process."""
    from alphac.runtime.main import main as role_main

    options: list[tuple[str, Any]] = [
        ("--join", join),
        ("--steps", steps),
        ("--threads", threads),
        ("--out", output),
        ("--resume", resume),
    ]
    given = [text for name, value in options if value is not None for text in (name, str(value))]
    raise typer.Exit(role_main(["role", str(bundle), "--role", str(number), *given]))


@app.command()
def extract(
    bundle: BundlePath,
    number: Annotated[int, typer.Option("--role", min=0, help="which role")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="the archive; default NAME-K.pyz")] = None,
) -> None:
    """Write one role as one self-contained executable archive."""
    from alphac.runtime.archive import extract as extract_role

    path = extract_role(bundle, number, output)
    out.print(f"wrote {path}")


@app.command("eval")
def eval_(
    bundle: BundlePath,
    parameters: Annotated[Path, typer.Option(help="parameters.safetensors, a checkpoint or a run directory")],
    threads: Annotated[int, typer.Option(min=1, max=256)] = 1,
) -> None:
    """Run every `evaluate` of BUNDLE with the given parameters."""
    from alphac.runtime.launch.local import evaluate

    for name, value in evaluate(bundle, parameters, threads=threads).items():
        out.print(f"{name} {value:.6g}")


@app.command()
def predict(
    bundle: BundlePath,
    inputs: Annotated[Path, typer.Argument(help="npz or safetensors with the region's inputs", metavar="INPUTS")],
    parameters: Annotated[Path, typer.Option(help="parameters.safetensors, a checkpoint or a run directory")],
    region: Annotated[str | None, typer.Option(help="which region; may be left out if there is one")] = None,
    output: Annotated[Path, typer.Option("--out", help="npz to write")] = Path("predictions.npz"),
    threads: Annotated[int, typer.Option(min=1, max=256)] = 1,
) -> None:
    """Run a region of BUNDLE on INPUTS with the given parameters."""
    from alphac.runtime.launch.local import predict as predict_region

    shapes = predict_region(bundle, region, inputs, parameters, out=output, threads=threads)
    out.print(f"wrote {output}  " + ", ".join(f"{name}{list(shape)}" for name, shape in shapes.items()))


def write_text(path: Path, text: str) -> None:
    """Write a file that the user named. Raises Diagnostics."""
    from alphac.diagnostics import fail

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise fail("E402", f"{path} cannot be written: {error.strerror or error}", None, "name another file") from error


@app.command()
def bench(
    source: Annotated[Path, typer.Argument(help="an .alpha file, or a bundle", metavar="FILE|BUNDLE")],
    against: Annotated[str | None, typer.Option(help="peers on the same work: torch,jax")] = None,
    threads: Annotated[str, typer.Option(help="numbers of threads, such as 2,1")] = "1",
    targets: Annotated[
        str | None, typer.Option(help="targets to compile for; the first is compared with peers")
    ] = None,
    settings: Set = [],  # noqa: B006
    repeats: Annotated[int, typer.Option(min=1, help="rounds in which everybody has a turn")] = 7,
    kernels: Annotated[bool, typer.Option("--kernels", help="time every kernel and region")] = False,
    json_: Annotated[Path | None, typer.Option("--json", help="write what was measured", metavar="FILE")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw it", metavar="FILE.svg")] = None,
) -> None:
    """Time a system's training step, its start and its compilation, beside its peers and the machine's limits."""
    from alphac.bench import command

    options = command.Options(
        source=source,
        against=choices("--against", against, command.PEERS),
        threads=counts("--threads", threads),
        targets=choices("--targets", targets, command.TARGETS),
        settings=overrides(settings),
        repeats=repeats,
        kernels=kernels,
    )
    command.run(options, out, err, json_, plot)


def choices(option: str, text: str | None, known: Collection[str]) -> tuple[str, ...]:
    """An option's list of words, each once. Raises typer.BadParameter for words that are not known."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(","))) if text is not None else ()
    if unknown := [word for word in words if word not in known]:
        raise typer.BadParameter(f"{option} takes some of {', '.join(known)}, not `{unknown[0]}`")
    return words


def counts(option: str, text: str) -> tuple[int, ...]:
    """An option's list of numbers from 1 to 256, each once. Raises typer.BadParameter."""
    words = [word.strip() for word in text.split(",")]
    if wrong := [w for w in words if not (w.isascii() and w.isdigit() and len(w) < 4 and 1 <= int(w) <= 256)]:
        raise typer.BadParameter(f"{option} takes numbers from 1 to 256, not `{wrong[0]}`")
    return tuple(dict.fromkeys(int(word) for word in words))


def main(arguments: list[str] | None = None) -> None:
    """The `alphac` command. Every failure ends in a message and an exit code, never in a traceback for the user."""
    sys.exit(guarded(lambda: app(args=arguments, prog_name="alphac", standalone_mode=False)))


def guarded(body: Callable[[], Any]) -> int:
    """Run `body`; turn what it raises into a message on stderr and an exit code."""
    from alphac.diagnostics import Diagnostics, render, source_of
    from alphac.runtime.errors import RuntimeFault

    try:
        result = body()
        return result if isinstance(result, int) else 0
    except typer.Exit as error:
        return error.exit_code
    except UsageError as error:
        error.show()
        return 2
    except typer.Abort:
        err.print("stopped")
        return 1
    except Diagnostics as error:
        err.print("\n\n".join(render(d, source_of) for d in error.diagnostics), markup=False)
        return 1
    except RuntimeFault as error:
        err.print(f"error: {error}", markup=False)
        return 3 if error.is_role_failure else 1
    except KeyboardInterrupt:
        err.print("stopped")
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EPIPE, errno.EIO):
            return _bug()
        err.print(f"error: what there is to say cannot be written: {error.strerror}", markup=False)
        return 1
    except Exception:
        return _bug()


def _bug() -> int:
    """Show the traceback of what is not the user's mistake."""
    err.print("alphac: internal error: this is a bug in alphac, not in your program\n", markup=False)
    err.print(traceback.format_exc(), markup=False)
    return 4


if __name__ == "__main__":
    main()
