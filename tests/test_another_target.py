"""The target that docs/targets.md shows how to write: its two files, as they stand there, give the CPU's bits."""

from __future__ import annotations

import re
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest
from pocl import runs
from running import write_line
from session import Session

from alphac.backends import registry
from alphac.backends.registry import host_target
from alphac.pipeline import Plan, compile_file

PAGE = Path(__file__).parents[1] / "docs" / "targets.md"
FILE = re.compile(r"^`(?P<path>\S+)`:\n\n```python\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def shown() -> dict[str, str]:
    """The files of the example by their paths."""
    return {found["path"]: found["text"] for found in FILE.finditer(PAGE.read_text(encoding="utf-8"))}


def test_a_target_takes_a_hundred_lines() -> None:
    files = shown()
    assert list(files) == ["backends/sketch.py", "runtime/devices/sketch.py"]
    assert sum(text.count("\n") for text in files.values()) <= 100


@runs
def test_the_target_of_the_page_gives_the_cpus_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[ModuleType] = []
    for path, text in shown().items():
        module = ModuleType(f"alphac.{path.removesuffix('.py').replace('/', '.')}")
        exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102
        monkeypatch.setitem(sys.modules, module.__name__, module)
        modules.append(module)
    (made,) = modules[0].TARGETS
    monkeypatch.setitem(registry._scanned(), made.name, (made, "sketch"))
    source = write_line(tmp_path / "line")
    names = (host_target().name, made.name)
    paths = [compile_file(source, out=tmp_path / n, plan=Plan((Fraction(1),), (n,))).path for n in names]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PoCL's compiler says of what it takes
        with Session(paths[0]) as cpu, Session(paths[1]) as other:
            assert other.train(10) == cpu.train(10)
            assert {n: s.tobytes() for n, s in other.states().items()} == {
                n: s.tobytes() for n, s in cpu.states().items()
            }
