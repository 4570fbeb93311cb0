"""Every wrong program in tests/errors/ and what it is answered with.

`NAME.alpha` is the program, `NAME.txt` the rendered diagnostics. A first line `# --set name=value` gives overrides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from alphac.diagnostics import CODES, PRELUDE, Diagnostics, render, source_of
from alphac.frontend import scope
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
    return source_of(file if file.startswith(PRELUDE) else str(ERRORS / file))


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


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"], ids=["plain", "marked"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "dos", "mac"])
def test_wrong_encoding(before: bytes, end: str, tmp_path: Path) -> None:
    """The place is counted in characters, and the line is shown."""
    path = tmp_path / "latin.alpha"
    path.write_bytes(before + f"system s{end}let é = ".encode() + f"größe{end}".encode("latin-1"))
    with pytest.raises(Diagnostics) as caught:
        read_source(path)
    (diagnostic,) = caught.value.diagnostics
    assert render(diagnostic, source_of).split("\n")[:3] == [
        f"{path}:2:11: error[E102]: byte 0xf6 is not UTF-8",
        "let é = gr\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}e",
        "          ^",
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "dos", "mac"])
def test_lines_end_as_editors_end_them(end: str, tmp_path: Path) -> None:
    path = tmp_path / "s.alpha"
    path.write_bytes(f"\ufeffsystem s{end}\tlet a = 1 2{end}".encode())
    with pytest.raises(Diagnostics) as caught:
        parse(read_source(path), str(path))
    (diagnostic,) = caught.value.diagnostics
    assert render(diagnostic, source_of).split("\n")[1:3] == [" let a = 1 2", "           ^"]
    assert str(diagnostic.span) == f"{path}:2:12"


def test_long_lines_are_shown_around_the_place() -> None:
    text = "system s\nlet a = " + " + ".join(["b"] * 200) + " + 2 3 + " + " + ".join(["b"] * 200)
    with pytest.raises(Diagnostics) as caught:
        parse(text, "s.alpha")
    (diagnostic,) = caught.value.diagnostics
    _, row, marks, _ = render(diagnostic, text).split("\n")
    assert len(row) == 160 and row[marks.index("^")] == "3" and "2 3" in row


def test_functions_that_double_each_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "MAXIMAL_OPERATIONS", 1000)
    doubling = "".join(f"fn g{k}(x) = g{k + 1}(x) + g{k + 1}(x)\n" for k in range(40))
    text = f"system s\n{doubling}fn g40(x) = x\nstate w: f32[] = 1\ntransition {{ w' = g0(w) }}\n"
    with pytest.raises(Diagnostics) as caught:
        elaborate(parse(text, "s.alpha"), overrides={}, directory=ERRORS)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E119" and diagnostic.message.endswith("comes to over 1,000 operations")
    assert diagnostic.span is not None and diagnostic.help


def test_control_characters_stay_out_of_messages() -> None:
    text = "system s\nlet a = \x1b[31m\n"
    with pytest.raises(Diagnostics) as caught:
        parse(text, "s.alpha")
    shown = render(caught.value.diagnostics[0], text)
    assert "U+001B has no meaning here" in shown and "\x1b" not in shown


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Diagnostics) as caught:
        read_source(tmp_path / "nothing.alpha")
    assert caught.value.diagnostics[0].code == "E100"


def test_binary_file() -> None:
    with pytest.raises(Diagnostics) as caught:
        parse("system s\n\0\n", "s.alpha")
    assert caught.value.diagnostics[0].code == "E102"
