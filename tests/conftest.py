"""What all tests share: golden files, and examples compiled once per session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = ROOT / "examples"

Golden = Callable[[Path | str, str], None]
Bundle = Callable[..., Path]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what tests produce over the golden files")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(path, text)`: `text` must be what the file says; `path` is absolute or relative to tests/golden.

    `pytest --update-golden` writes the file instead, for a person to read in the diff."""
    update = request.config.getoption("--update-golden")

    def compare(path: Path | str, text: str) -> None:
        file = GOLDEN / path
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif not file.exists():
            pytest.fail(f"{file} does not exist; `pytest --update-golden` writes it")
        else:
            assert text == file.read_text(encoding="utf-8"), f"{file} differs; `pytest --update-golden` rewrites it"

    return compare


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """`bundle(example, roles=…, shares=…, overrides=…)`: the example's bundle, compiled once per session and options.

    `example` is a name in examples/ (`digits_mlp`) or the path of an .alpha file; `shares` are proportions, one per
    role; `overrides` are what `--set` takes. The bundle is shared: a test that changes one copies it first. Kernels
    come from the user's cache, so that a second run of the tests compiles none."""
    made: dict[tuple[object, ...], Path] = {}

    def compile_example(
        example: str | Path,
        *,
        roles: int = 1,
        shares: tuple[int, ...] | None = None,
        overrides: dict[str, str] | None = None,
    ) -> Path:
        from alphac import pipeline

        source = example if isinstance(example, Path) else EXAMPLES / example / f"{example}.alpha"
        given = overrides or {}
        key = (source, roles, shares, tuple(sorted(given.items())))
        if key not in made:
            out = tmp_path_factory.mktemp("bundles") / f"{source.stem}.bundle"
            plan = pipeline.Plan.of(roles=roles, shares=[Fraction(share) for share in shares] if shares else None)
            made[key] = pipeline.compile_file(source, out=out, plan=plan, overrides=given).path
        return made[key]

    return compile_example


@pytest.fixture
def own_bundle(bundle: Bundle, tmp_path: Path) -> Bundle:
    """Like `bundle`, but a copy that the test may damage."""

    def copy(example: str | Path, **options: object) -> Path:
        source = bundle(example, **options)
        return Path(shutil.copytree(source, tmp_path / source.name))

    return copy
