"""What the documents show is true: commands exist, listings parse, links lead somewhere, data are as described."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from alphac.frontend.parse import parse

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")})
FENCE = re.compile(r"^```(?P<language>[\w-]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:alphac|make) [^`\n]+)`")
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\((?!https?:|#)([^)\s#]+)[^)\s]*\)")


@dataclass(frozen=True)
class Quote:
    """Something a document quotes, and the line that it stands on."""

    document: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def listings(language: str) -> Iterator[Quote]:
    """Fenced blocks of one language in all documents."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if match["language"] == language:
                yield Quote(document, text.count("\n", 0, match.start()) + 2, match["text"])


def commands(program: str) -> Iterator[Quote]:
    """Every `program …` in all documents: in a line of a shell block (with or without `$`), or in running text."""
    for block in (*listings("sh"), *listings("console")):
        for number, line in enumerate(block.text.splitlines()):
            command = line.removeprefix("$ ").split("  #")[0].strip()
            if command.startswith(f"{program} "):
                yield Quote(block.document, block.line + number, command)
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        prose = FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        for match in INLINE.finditer(prose):
            if match[1].startswith(f"{program} "):
                yield Quote(document, prose.count("\n", 0, match.start()) + 1, match[1])


def arguments(command: str) -> list[str]:
    """A command's arguments, with an example for each placeholder: `[--roles N]` becomes `--roles 1`."""
    plain = re.sub(r"[\[\]…]", " ", command)
    found = [re.sub(r"^(\S+?)\|\S+$", r"\1", word) for word in shlex.split(plain, comments=True)[1:]]
    return ["1" if re.fullmatch("[A-Z]", word) else word for word in found]


def command_line() -> Any:
    """The `alphac` command as typer builds it: a group of commands."""
    import typer.main

    from alphac.cli import app

    return typer.main.get_command(app)


def test_documents_exist() -> None:
    names = {str(document.relative_to(ROOT)) for document in DOCUMENTS}
    assert {"README.md", "CONTRIBUTING.md", "docs/architecture.md", "examples/data/README.md"} <= names
    assert list(listings("alpha")), "no document shows a program"


@pytest.mark.parametrize("quote", [*commands("alphac")], ids=str)
def test_alphac_commands_are_accepted(quote: Quote) -> None:
    name, *rest = arguments(quote.text)
    group = command_line()
    assert name in group.commands, f"`{quote.text}`: alphac has no command `{name}`"
    if rest and "--help" not in rest:
        group.commands[name].make_context(name, rest).close()


@pytest.mark.parametrize("quote", [*commands("make")], ids=str)
def test_make_commands_have_a_target(quote: Quote) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    wanted = [word for word in arguments(quote.text) if "=" not in word]
    assert wanted, quote.text
    assert set(wanted) <= set(targets), f"`{quote.text}`: the Makefile has {', '.join(targets)}"


@pytest.mark.parametrize("quote", [*listings("alpha")], ids=str)
def test_listings_parse(quote: Quote) -> None:
    """A listing is a whole file, or declarations that would stand in one."""
    whole = re.search(r"^system ", quote.text, re.MULTILINE)
    parse(quote.text if whole else f"system listing\n{quote.text}", str(quote))


def test_readme_shows_the_example_as_it_is() -> None:
    example = (ROOT / "examples/digits_mlp/digits_mlp.alpha").read_text(encoding="utf-8")
    assert example in [quote.text for quote in listings("alpha") if quote.document == ROOT / "README.md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [target for target in LINK.findall(text) if not (document.parent / target).exists()]
    assert not missing


def test_data_is_what_its_readme_says() -> None:
    folder = ROOT / "examples/data"
    text = (folder / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| ([\d,]+) \|.*\| `([0-9a-f]{64})` \|$", text, re.MULTILINE)
    said = {name: (int(size.replace(",", "")), digest) for name, size, digest in rows}
    found = {
        path.name: (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
        if path.name != "README.md"
    }
    assert said == found
