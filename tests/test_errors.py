"""Every wrong program in tests/errors/ and what it is answered with.

`NAME.alpha` is the program, `NAME.txt` the rendered diagnostics. A first line `# --set name=value` gives overrides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from alphac.diagnostics import CODES, Diagnostics, render
from alphac.frontend.elaborate import elaborate
from alphac.frontend.parse import parse, read_source
from alphac.pipeline import differentiate

ERRORS = Path(__file__).parent / "errors"
PROGRAMS = sorted(p.stem for p in ERRORS.glob("*.alpha"))


def answer(name: str) -> Diagnostics:
    """What the front end says to tests/errors/NAME.alpha."""
    text = read_source(ERRORS / f"{name}.alpha")
    overrides = {}
    if text.startswith("# --set "):
        key, _, value = text.split("\n", 1)[0].removeprefix("# --set ").partition("=")
        overrides[key] = value
    with pytest.raises(Diagnostics) as caught:
        differentiate(elaborate(parse(text, f"{name}.alpha"), overrides=overrides, directory=ERRORS))
    return caught.value


def source(file: str) -> str | None:
    path = ERRORS / file
    return path.read_text(encoding="utf-8") if path.exists() else None


@pytest.mark.parametrize("name", PROGRAMS)
def test_answer(name: str, golden: Callable[[Path, str], None]) -> None:
    diagnostics = answer(name).diagnostics
    golden(ERRORS / f"{name}.txt", "\n\n".join(render(d, source) for d in diagnostics) + "\n")
    if name.startswith("E"):
        assert name[:4] in {d.code for d in diagnostics}


def test_thirty_codes() -> None:
    assert len({p[:4] for p in PROGRAMS if p.startswith("E")}) >= 30
    assert {p[:4] for p in PROGRAMS if p.startswith("E")} <= set(CODES)


def test_every_message_is_one_sentence_with_help() -> None:
    for name in PROGRAMS:
        for diagnostic in answer(name).diagnostics:
            assert diagnostic.help and "\n" not in diagnostic.message, name
            assert not diagnostic.message.endswith("."), name


def test_wrong_encoding(tmp_path: Path) -> None:
    path = tmp_path / "latin.alpha"
    path.write_bytes("system s\nlet größe = 1\n".encode("latin-1"))
    with pytest.raises(Diagnostics) as caught:
        read_source(path)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.span and diagnostic.span.line) == ("E102", 2)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Diagnostics) as caught:
        read_source(tmp_path / "nothing.alpha")
    assert caught.value.diagnostics[0].code == "E100"


def test_binary_file() -> None:
    with pytest.raises(Diagnostics) as caught:
        parse("system s\n\0\n", "s.alpha")
    assert caught.value.diagnostics[0].code == "E102"
