"""The command line: what every command says, its exit codes, and that nothing bad ever shows a traceback.

Exit codes: 0 done, 1 the user's input, 2 usage, 3 a role failed, 4 internal.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import running
from running import Answer, Processes, Run, call, ended, train

from alphac import pipeline
from alphac.ir.text import print_module
from alphac.ir.text_parse import parse_module
from alphac.runtime.bundle import read_bundle

Bundle = Callable[..., Path]
Golden = Callable[[Path | str, str], None]
COMMANDS = ("compile", "check", "inspect", "run", "role", "extract", "eval", "predict", "bench")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return running.write_line(tmp_path_factory.mktemp("line"))


@pytest.fixture(scope="module")
def line(bundle: Bundle, source: Path) -> Path:
    return bundle(source)


@pytest.fixture(scope="module")
def learned(line: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(line, tmp_path_factory.mktemp("learned") / "run", 20)


@pytest.fixture
def here(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, with the system and its data."""
    for name in ("line.alpha", "points.npz"):
        shutil.copy(source.parent / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


def done(answer: Answer) -> str:
    """What a command printed that must have gone well."""
    assert (answer.code, answer.err) == (0, "")
    return answer.out


# ---------------------------------------------------------------------- help
def test_help_names_every_command() -> None:
    out = done(call("--help"))
    assert all(name in out for name in COMMANDS)


def test_nothing_asked_for_is_answered_with_help() -> None:
    answer = call()
    assert answer.code == 2
    assert "Usage" in answer.out + answer.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert "Usage" in done(call(command, "--help"))


# ---------------------------------------------------------------------- compile
def test_compile_writes_a_bundle_beside_the_user(here: Path) -> None:
    out = done(call("compile", "line.alpha", "--roles", 2))
    assert re.fullmatch(r"wrote line\.bundle  \(2 roles, \d+ kernels\)\n", out)
    manifest = read_bundle(here / "line.bundle").manifest
    assert [r.shards for r in manifest.roles] == [4, 4]  # type: ignore[union-attr]
    assert sorted(p.name for p in (here / "line.bundle").iterdir()) == [
        "__main__.py",
        "data",
        "ir",
        "kernels",
        "manifest.json",
        "objects",
        "protocol.json",
    ]
    assert sorted(p.name for p in here.iterdir()) == ["line.alpha", "line.bundle", "points.npz"]


def test_a_directory_that_exists_is_left_alone(here: Path) -> None:
    (here / "line.bundle").mkdir()
    answer = call("compile", "line.alpha")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error[E401]: line.bundle exists already")
    assert list((here / "line.bundle").iterdir()) == []
    assert call("compile", "line.alpha", "-o", "points.npz").code == 1


def test_shares_are_proportions(here: Path) -> None:
    done(call("compile", "line.alpha", "--shares", "3,5", "-o", "a.bundle"))
    done(call("compile", "line.alpha", "--shares", "0.5, 1/6 ,1/3", "--roles", 3, "-o", "b.bundle"))
    shares = [[r.shards for r in read_bundle(here / n).all_roles()] for n in ("a.bundle", "b.bundle")]
    assert shares == [[3, 5], [4, 1, 3]]


def test_a_fleet_names_who_takes_part(here: Path) -> None:
    (here / "two.toml").write_text('[[endpoint]]\nname = "desk"\nspeed = 3\n[[endpoint]]\nname = "lap"\n')
    done(call("compile", "line.alpha", "--fleet", "two.toml", "-o", "two.bundle"))
    assert [r.shards for r in read_bundle(here / "two.bundle").all_roles()] == [6, 2]
    run = train(here / "two.bundle", here / "run", 20)
    assert run.states == train_alone(here).states


def train_alone(here: Path) -> Run:
    done(call("compile", "line.alpha", "-o", "alone.bundle"))
    return train(here / "alone.bundle", here / "alone", 20)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[[endpoint",
        "endpoint = 3",
        "[endpoint]\nname = 'x'",
        "[[endpoint]]",
        "[[endpoint]]\nname = 3",
        "[[endpoint]]\nname = 'x'\nspeed = 0",
        "[[endpoint]]\nname = 'x'\nspeed = nan",
        "[[endpoint]]\nname = 'x'\nspeed = true",
        "[[endpoint]]\nname = 'x'\ntarget = 'abacus'",
        "[[endpoint]]\nname = 'x'\n[[endpoint]]\nname = 'x'",
        "[[endpoint]]\nname = 'x'\ncolour = 'red'",
        "[[host]]\nname = 'x'",
        "\x00",
    ],
)
def test_a_fleet_file_that_is_none(here: Path, content: str) -> None:
    (here / "fleet.toml").write_text(content)
    answer = call("compile", "line.alpha", "--fleet", "fleet.toml")
    assert (answer.code, answer.out) == (1, "")
    assert re.match(r"(fleet\.toml:\d+:\d+: )?error\[E2\d\d\]: .*\n(.*\n *\^+\n)?help: ", answer.err)
    assert not (here / "line.bundle").exists()


def test_settings_are_part_of_the_systems_identity(here: Path) -> None:
    identities = []
    for number, settings in enumerate([(), ("--set", "rate=0.05"), ("--set", "rate=0.06"), ("--set", "rate = 6e-2")]):
        done(call("compile", "line.alpha", *settings, "-o", f"{number}.bundle"))
        identities.append(read_bundle(here / f"{number}.bundle").manifest.identity)
    assert len(set(identities)) == 2
    assert identities[0] == identities[1] and identities[2] == identities[3]


def test_the_plan_is_no_part_of_the_systems_identity(here: Path) -> None:
    for name, plan in (("a", ("--roles", 1)), ("b", ("--shares", "1,6"))):
        done(call("compile", "line.alpha", *plan, "-o", f"{name}.bundle"))
    a, b = (read_bundle(here / f"{name}.bundle").manifest for name in "ab")
    assert a.identity == b.identity and a.bundle != b.bundle


def test_the_same_input_gives_the_same_bundle(here: Path) -> None:
    other = here / "elsewhere"
    other.mkdir()
    for name in ("line.alpha", "points.npz"):
        shutil.copy(here / name, other)
    done(call("compile", "line.alpha", "-o", "a.bundle"))
    done(call("compile", "line.alpha", "-o", "b.bundle"))
    done(call("compile", other / "line.alpha", "-o", "c.bundle"))
    a, b, c = (read_bundle(here / f"{name}.bundle").manifest for name in "abc")
    assert a.bundle == b.bundle
    assert a.identity == c.identity


@pytest.mark.parametrize("setting", ["grain=4", "batch=32", "features=2", "rate=fast", "w=1", "nothing=1"])
def test_what_cannot_be_set(here: Path, setting: str) -> None:
    answer = call("compile", "line.alpha", "--set", setting)
    assert (answer.code, answer.out) == (1, "")
    assert f"error[E139]: `--set {setting}`" in answer.err
    assert not (here / "line.bundle").exists()


@pytest.mark.parametrize("stage", pipeline.STAGES)
def test_every_stage_can_be_looked_at(here: Path, stage: str) -> None:
    out = done(call("compile", "line.alpha", "--roles", 2, "--emit", stage))
    assert len(out.splitlines()) > 10 and out.endswith("\n")
    assert not (here / "line.bundle").exists()
    if stage in ("ir", "adjoint", "simplified"):
        assert print_module(parse_module(out)) == out
    elif stage == "protocol":
        assert [[s["shards"] for s in strand] for strand in json.loads(out)["shares"]] == [[4, 4]]
    elif stage == "kernels":
        compile(out, "kernels", "exec", dont_inherit=True)  # it is Python


def test_what_is_emitted_is_what_the_bundle_holds(here: Path) -> None:
    done(call("compile", "line.alpha"))
    for stage, file in (("ir", "ir/system.ir"), ("tiled", "ir/compiled.ir"), ("schedule", "ir/schedule.txt")):
        assert done(call("compile", "line.alpha", "--emit", stage)) == (here / "line.bundle" / file).read_text()


# ---------------------------------------------------------------------- check, inspect
def test_check_says_what_is_learned(here: Path) -> None:
    assert done(call("check", "line.alpha")) == "line.alpha: ok (line: 2 parameters of 4 elements, grain 8 of batch)\n"
    assert sorted(p.name for p in here.iterdir()) == ["line.alpha", "points.npz"]


def test_check_finds_what_compile_finds(here: Path) -> None:
    (here / "wrong.alpha").write_text(running.LINE.replace("guess(x) - y", "guess(x) - z"))
    checked, compiled = call("check", "wrong.alpha"), call("compile", "wrong.alpha")
    assert (checked.code, checked.err) == (compiled.code, compiled.err)
    assert checked.code == 1 and "error[E110]" in checked.err and "^" in checked.err


def test_inspect(bundle: Bundle, source: Path, golden: Golden) -> None:
    golden("inspect.txt", plain(done(call("inspect", bundle(source, shares=(3, 5))))))


def test_inspect_a_role(bundle: Bundle, source: Path, golden: Golden) -> None:
    golden("inspect_role.txt", plain(done(call("inspect", bundle(source, shares=(3, 5)), "--role", 1))))


def plain(text: str) -> str:
    """Without what changes with the host and with how kernels are made."""
    for pattern, word in (
        (r"\b[0-9a-f]{16}\b", "DIGEST"),
        (r"[\d.]+ [KM]iB", "SIZE"),
        (r"\d+ kernels", "N kernels"),
        (r"x86-64\S*?(?=,)|aarch64\S*?(?=,)", "TARGET"),
    ):
        text = re.sub(pattern, word, text)
    return text


# ---------------------------------------------------------------------- run, role, extract, eval, predict
def test_run_shows_its_progress(line: Path, tmp_path: Path) -> None:
    out = done(call("run", line, "--steps", 20, "--threads", 2, "--out", tmp_path / "run"))
    lines = out.splitlines()
    assert lines[0] == "line  1 role  shards 8  2 threads each"
    assert re.match(r"epoch   1  step     10  error \d\.\d{4}", lines[1])
    assert f"checkpoint {tmp_path / 'run' / 'checkpoints'}" in out
    assert re.match(r"20 steps in \d+\.\d s, run directory ", lines[-1])


def test_names_that_look_like_markup_are_printed_as_they_are(here: Path) -> None:
    assert done(call("compile", "line.alpha", "-o", "[bold].bundle")).startswith("wrote [bold].bundle  (")
    out = done(call("run", "[bold].bundle", "--steps", 5, "--out", "[red]"))
    assert "checkpoint [red]/checkpoints/" in out and "run directory [red]\n" in out
    assert call("run", "[bold].bundle", "--out", "[red]").err.startswith("error: [red] exists")


def test_a_role_is_run_in_this_process(line: Path, tmp_path: Path, processes: Processes) -> None:
    process = processes.alphac("role", line, "--role", 0, "--steps", 20, "--out", "run", cwd=tmp_path)
    answer = ended(process)
    assert (answer.code, answer.err) == (0, "")
    assert Run(tmp_path / "run").record["roles"][0]["pid"] == process.pid


def test_extract_has_a_default_name(line: Path, here: Path) -> None:
    assert done(call("extract", line, "--role", 0)) == "wrote line-0.pyz\n"
    answer = call("extract", line, "--role", 0)
    assert (answer.code, answer.err) == (1, "error: line-0.pyz exists\nhelp: give another -o\n")


def test_eval_and_predict(line: Path, learned: Run, here: Path) -> None:
    assert re.fullmatch(r"error \d\.\d+\n", done(call("eval", line, "--parameters", learned.directory)))
    np.savez(here / "in.npz", x=np.ones((5, 3), np.float32))
    options = ("--parameters", learned.directory, "--region", "guess", "--out", "there.npz")
    assert done(call("predict", line, "in.npz", *options)) == "wrote there.npz  guess[5]\n"
    assert np.load("there.npz")["guess"].shape == (5,)


# ---------------------------------------------------------------------- exit codes
USAGE: list[tuple[str, ...]] = [
    ("frobnicate",),
    ("compile",),
    ("compile", "line.alpha", "--frobnicate"),
    ("compile", "line.alpha", "two.alpha"),
    ("compile", "line.alpha", "--roles", "0"),
    ("compile", "line.alpha", "--roles", "-1"),
    ("compile", "line.alpha", "--roles", "two"),
    ("compile", "line.alpha", "--roles", "1000000000"),
    ("compile", "line.alpha", "--shares", ""),
    ("compile", "line.alpha", "--shares", "3,x"),
    ("compile", "line.alpha", "--shares", "3,0"),
    ("compile", "line.alpha", "--shares", "3,-5"),
    ("compile", "line.alpha", "--shares", "1/0"),
    ("compile", "line.alpha", "--shares", "nan"),
    ("compile", "line.alpha", "--shares", "3,5", "--roles", "3"),
    ("compile", "line.alpha", "--fleet", "fleet.toml", "--roles", "2"),
    ("compile", "line.alpha", "--fleet", "fleet.toml", "--shares", "1,2"),
    ("compile", "line.alpha", "--emit", "assembly"),
    ("compile", "line.alpha", "--set", "rate"),
    ("compile", "line.alpha", "--set", "=1"),
    ("compile", "line.alpha", "--set", "rate=1", "--set", "rate=2"),
    ("check", "line.alpha", "--set", "rate="),
    ("inspect", "line.bundle", "--role", "-1"),
    ("run", "line.bundle", "--steps", "-1"),
    ("run", "line.bundle", "--steps", "many"),
    ("run", "line.bundle", "--steps", "1.5"),
    ("run", "line.bundle", "--threads", "0"),
    ("run", "line.bundle", "--threads", "257"),
    ("run", "line.bundle", "--emulate", "aarch64"),
    ("run", "line.bundle", "--emulate", "aarch64='"),
    ("run", "line.bundle", "--emulate", "aarch64=a", "--emulate", "aarch64=b"),
    ("role", "line.bundle"),
    ("role", "line.bundle", "--role", "-1"),
    ("role", "line.bundle", "--role", "0", "--join", "nowhere"),
    ("role", "line.bundle", "--role", "0", "--join", "host:99999"),
    ("role", "line.bundle", "--role", "0", "--steps", "9" * 30),
    ("extract", "line.bundle"),
    ("eval", "line.bundle"),
    ("predict", "line.bundle", "in.npz"),
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_usage(arguments: tuple[str, ...], here: Path) -> None:
    answer = call(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.strip() and "Traceback" not in answer.err
    assert sorted(p.name for p in here.iterdir()) == ["line.alpha", "points.npz"]


BAD: list[tuple[str, ...]] = [
    ("compile", "nothing.alpha"),
    ("compile", "."),
    ("compile", "points.npz"),
    ("compile", "line.alpha", "--roles", "9"),
    ("compile", "line.alpha", "--roles", "1000000"),
    ("compile", "line.alpha", "--shares", ",".join(["1"] * 9)),
    ("compile", "line.alpha", "--fleet", "nothing.toml"),
    ("compile", "line.alpha", "--fleet", "."),
    ("compile", "line.alpha", "--fleet", "points.npz"),
    ("compile", "line.alpha", "-o", "line.alpha/line.bundle"),
    ("check", "nothing.alpha"),
    ("check", "points.npz"),
    ("inspect", "nothing"),
    ("inspect", "line.alpha"),
    ("inspect", "."),
    ("run", "nothing"),
    ("run", "line.alpha"),
    ("role", "nothing", "--role", "0"),
    ("extract", "nothing", "--role", "0"),
    ("eval", "nothing", "--parameters", "nothing"),
    ("predict", "nothing", "points.npz", "--parameters", "nothing"),
]


@pytest.mark.parametrize("arguments", BAD, ids=lambda a: " ".join(a)[:60])
def test_bad_input(arguments: tuple[str, ...], here: Path) -> None:
    answer = call(*arguments)
    assert answer.code == (10 if arguments[0] == "role" else 1)
    assert re.match(r"([\w.]+:\d+:\d+: )?error", answer.err) and "Traceback" not in answer.err
    assert sorted(p.name for p in here.iterdir()) == ["line.alpha", "points.npz"]


def test_a_failed_role_is_exit_code_3(here: Path) -> None:
    done(call("compile", "line.alpha", "--set", "rate=1e30"))
    answer = call("run", "line.bundle", "--out", "run", "--steps", 100)
    assert answer.code == 3
    assert "failed: role 0, step" in answer.out


def test_a_bug_is_exit_code_4(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> str:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(pipeline, "check", broken)
    answer = call("check", "line.alpha")
    assert answer.code == 4
    assert "this is a bug in alphac, not in your program" in answer.err and "ZeroDivisionError: a bug" in answer.err


def test_an_output_that_takes_nothing_is_no_bug(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pipeline, "check", full)
    answer = call("check", "line.alpha")
    assert (answer.code, answer.err) == (1, "error: what there is to say cannot be written: No space left on device\n")


def test_the_command_is_installed_under_its_name(here: Path, processes: Processes) -> None:
    answer = ended(processes.alphac("check", "line.alpha", cwd=here))
    assert (answer.code, answer.err) == (0, "")
    answer = ended(processes.alphac("check", "nothing.alpha", cwd=here))
    assert (answer.code, answer.err) == (1, "error[E100]: there is no file `nothing.alpha`\nhelp: check the path\n")
