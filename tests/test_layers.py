"""Who may import whom (docs/architecture.md, CONTRIBUTING.md), read from the source of every file.

ir ← backends ← alphac          runtime: the standard library, numpy, llvmlite, safetensors and itself
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("ir", "backends", "runtime")
FOLDERS = ("alphac", *PARTS, "tests", "benchmarks", "scripts")

# What a part may import of alphac; what is not named here may import all.
OURS = {
    "alphac.ir": ("alphac.ir",),
    "alphac.backends": ("alphac.ir", "alphac.backends"),
    "alphac.runtime": ("alphac.runtime",),
}
# A role starts from these alone.
RUNTIME_PACKAGES = frozenset({"numpy", "llvmlite", "safetensors"})
# Modules of the runtime that stand for something optional, and what they may import for it, inside functions only.
ADAPTERS: dict[str, frozenset[str]] = {
    "alphac.runtime.devices.cuda": frozenset({"cuda"}),
    "alphac.runtime.devices.opencl": frozenset({"pyopencl"}),
    "alphac.runtime.devices.metal": frozenset({"Metal"}),
}

TARGETS = frozenset({"x86_64", "x86-64", "aarch64", "arm64", "cuda", "rocm", "metal", "opencl", "vulkan"})
UNSAFE_CALLS = frozenset({"eval", "exec", "compile", "__import__"})
UNSAFE_MODULES = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle"})


@dataclass(frozen=True)
class Import:
    """One imported module, where, and whether it is imported when the file is."""

    module: str
    line: int
    lazy: bool


@dataclass(frozen=True)
class Source:
    """One Python file and the name it is imported by."""

    name: str
    path: Path
    tree: ast.Module

    def imports(self) -> Iterator[Import]:
        """All imports; `from a import b` names `a.b`, which is a module or lies in one."""
        lazy = {
            id(inner)
            for function in ast.walk(self.tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in ast.walk(function)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = ["." * node.level + f"{node.module or ''}.{alias.name}" for alias in node.names]
            elif dynamic := imported_by_call(node):
                names = [dynamic]
            else:
                continue
            for name in names:
                yield Import(name, getattr(node, "lineno", 0), id(node) in lazy)


def imported_by_call(node: ast.AST) -> str | None:
    """The module in `importlib.import_module("module")`, if `node` is that."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return str(node.args[0].value) if called == "import_module" else None


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the repository, once."""
    found: list[Source] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "__pycache__" in parts or (folder == "alphac" and len(parts) > 1 and parts[1] in PARTS):
                continue
            name = ".".join(("alphac", *parts) if folder in PARTS else parts).removesuffix(".__init__")
            found.append(Source(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path))))
    return tuple(found)


def within(module: str, packages: tuple[str, ...]) -> bool:
    """Whether `module` is one of `packages` or lies in one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def part_of(source: Source) -> str | None:
    """The constrained part a file belongs to."""
    return next((part for part in OURS if within(source.name, (part,))), None)


def ours(module: str, part: str) -> bool:
    """Whether `part` may import `module` of alphac. `from alphac import x` resolves names lazily: it is the whole."""
    return not within(module, ("alphac",)) or within(module, OURS[part])


def test_there_is_something_to_check() -> None:
    assert {part_of(source) for source in sources()} >= set(OURS)


def test_parts_import_only_what_lies_below_them() -> None:
    wrong = [
        f"{source.path}:{found.line}: {source.name} imports {found.module}"
        for source in sources()
        if (part := part_of(source))
        for found in source.imports()
        if not ours(found.module, part)
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_are_absolute_and_name_alphac() -> None:
    wrong = [
        f"{source.path}:{found.line}: imports {found.module}"
        for source in sources()
        for found in source.imports()
        if found.module.startswith(".") or within(found.module, PARTS)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_runtime_needs_three_packages() -> None:
    wrong: list[str] = []
    for source in sources():
        if part_of(source) != "alphac.runtime":
            continue
        for found in source.imports():
            package = found.module.split(".")[0]
            if package in RUNTIME_PACKAGES | sys.stdlib_module_names | {"alphac"}:
                continue
            if not (found.lazy and package in ADAPTERS.get(source.name, ())):
                wrong.append(f"{source.path}:{found.line}: {source.name} imports {found.module}")
    assert not wrong, "\n".join(wrong)


def test_the_runtime_runs_no_data_as_code() -> None:
    wrong: list[str] = []
    for source in sources():
        if part_of(source) != "alphac.runtime":
            continue
        wrong += [f"{source.path}: {i.module}" for i in source.imports() if i.module.split(".")[0] in UNSAFE_MODULES]
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
                wrong.append(f"{source.path}:{node.lineno}: {node.func.id}")
            for keyword in node.keywords:
                refused = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in ("allow_pickle", "shell") and not refused:
                    wrong.append(f"{source.path}:{node.lineno}: {keyword.arg}")
    assert not wrong, "\n".join(wrong)


def test_the_ir_names_no_target() -> None:
    wrong = [
        f"{source.path}:{node.lineno}: {node.value}"
        for source in sources()
        if part_of(source) == "alphac.ir"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and node.value in TARGETS
    ]
    assert not wrong, "\n".join(wrong)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter, in the repository's root."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_runtime_loads_no_compiler() -> None:
    modules = [s.name for s in sources() if part_of(s) == "alphac.runtime" and not s.name.endswith("__main__")]
    code = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
loaded = {{name for name in sys.modules if name.startswith(("alphac.", "lark", "numba", "typer", "rich", "scipy"))}}
print(sorted(name for name in loaded if not (name + ".").startswith("alphac.runtime.")))
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("part", PARTS)
def test_parts_refuse_their_short_name(part: str) -> None:
    done = run_python(f"import {part}")
    assert done.returncode == 1
    assert f"import this package as `alphac.{part}`" in done.stderr


@pytest.mark.parametrize("part", PARTS)
def test_parts_are_links(part: str) -> None:
    link = ROOT / "alphac" / part
    assert link.is_symlink()
    assert link.readlink() == Path("..") / part


def tracked() -> list[Path]:
    """Files that are, or would be, committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in done.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def test_no_file_names_a_place_on_one_machine() -> None:
    place = re.compile(rb"(?<![\w.*-])/(?:work|root|farm|home)/")
    wrong = [str(path) for path in tracked() if place.search(path.read_bytes())]
    assert not wrong, wrong
