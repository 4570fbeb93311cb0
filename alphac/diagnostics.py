"""What a wrong program or a wrong input is answered with, and how it looks.

One `Diagnostic` is one mistake: where, what is wrong in the program's own terms, and what to do. Phases collect several
and raise them together as `Diagnostics`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from alphac.ir.span import Span

PRELUDE = "<prelude>/"  # how spans name the files of the prelude
LONGEST_LINE = 160  # characters of a line of the source that a message shows

CODES: dict[str, str] = {
    # E100 … E109: the text
    "E100": "the file cannot be read",
    "E101": "syntax error",
    "E102": "the file is not UTF-8 text",
    "E103": "nested too deeply",
    "E104": "a number is too large to be one",
    "E105": "something is declared twice",
    "E106": "a declaration is missing",
    "E107": "a `use`d file cannot be used",
    # E110 … E129: names and types
    "E110": "unknown name",
    "E111": "axes do not fit together",
    "E112": "`@` joins two different axes",
    "E113": "element types do not fit together",
    "E114": "a value has another type than its declaration says",
    "E115": "unknown element type",
    "E116": "wrong arguments",
    "E117": "not this kind of thing",
    "E118": "a dim is wrong",
    "E119": "absurd size",
    "E120": "something is defined by itself",
    "E121": "must be known when compiling",
    "E122": "a loop changes the type of a name that it carries",
    "E123": "a wrong index or axis",
    # E130 … E149: learning
    "E130": "a parameter is never used",
    "E131": "not differentiable",
    "E132": "nothing to learn",
    "E133": "a state is assigned wrongly",
    "E134": "the loss is not a single number",
    "E135": "the batch and the grain do not fit",
    "E136": "not available in an evaluate",
    "E137": "a contract that this version does not have",
    "E138": "wrong training statement",
    "E139": "an override (`--set`) is wrong",
    "E140": "unknown numeric mode or requirement",
    "E141": "used where it has no meaning",
    "E142": "a state is read before it is initialized",
    # E2xx: fleets and admission
    "E201": "more roles than shards",
    "E202": "a fleet file says something that it cannot say",
    "E204": "no endpoint can run a region",
    "E205": "a fleet file names an unknown target",
    "E206": "an endpoint or host is named twice, or not at all",
    "E207": "a fleet file is missing or no TOML",
    "E208": "more memory is promised than there is",
    "E209": "an endpoint has no memory",
    "E210": "a link does not exist",
    "E211": "no plan fits a fleet",
    "E212": "an endpoint cannot be calibrated here",
    "E213": "a file holds no plan",
    "E214": "a target needs a program that is not installed",
    # E3xx: data
    "E300": "a data file is missing",
    "E301": "a data file is corrupt or not of its format",
    "E302": "a data file has no such column",
    "E303": "a column has another shape or element type than declared",
    "E304": "a label is out of range",
    "E305": "there are no examples",
    "E306": "fewer examples than one batch",
    "E307": "the split is wrong",
    "E308": "columns have different numbers of rows",
    "E309": "unknown data format",
    # E4xx: outputs
    "E401": "the output exists already",
    "E402": "the output cannot be written",
    # E5xx: measuring
    "E501": "a peer cannot take part",
    "E502": "a peer does other work",
    "E503": "a measured process failed",
    "E504": "this cannot be measured",
}


@dataclass(frozen=True)
class Label:
    """A remark under one place of the source."""

    span: Span
    text: str


@dataclass(frozen=True)
class Diagnostic:
    """One mistake of the user.

    code     a key of CODES
    message  one sentence, without a full stop, in the program's own terms
    span     where; None if it has no place in a file (a command-line option)
    help     what to do about it; may be ""
    labels   remarks under places of the source; without any, carets mark `span`
    """

    code: str
    message: str
    span: Span | None = None
    help: str = ""
    labels: tuple[Label, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"{self.code} is not in CODES")

    def called_from(self, call: Span) -> Diagnostic:
        """The same at the place from which the prelude was called, if it is in the prelude: its line is a remark."""
        if self.span is None or not in_prelude(self.span):
            return self
        return replace(self, span=call, labels=(Label(call, ""), *(self.labels or (Label(self.span, ""),))))


def in_prelude(span: Span) -> bool:
    return span.file.startswith(PRELUDE)


class Diagnostics(Exception):
    """The mistakes that one phase found. Never empty."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = list(diagnostics)
        super().__init__("\n".join(f"error[{d.code}]: {d.message}" for d in self.diagnostics))


def fail(code: str, message: str, span: Span | None, help: str = "", labels: Iterable[Label] = ()) -> Diagnostics:
    """A `Diagnostics` of one, to raise."""
    return Diagnostics([Diagnostic(code, message, span, help, tuple(labels))])


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` is most likely a misspelling of, if any."""
    limit = 1 if len(name) <= 3 else 2 if len(name) <= 7 else 3
    best: tuple[int, str] | None = None
    for candidate in candidates:
        if abs(len(candidate) - len(name)) > limit:
            continue
        distance = _distance(name, candidate)
        if distance <= limit and distance < len(name) and (best is None or (distance, candidate) < best):
            best = (distance, candidate)
    return best[1] if best else None


def _distance(a: str, b: str) -> int:
    """Edits (insert, delete, replace, swap neighbours) between two words."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


# ------------------------------------------------------------------------------------------------------------ rendering
def source_of(file: str) -> str | None:
    """The text that a diagnostic points into; None if it cannot be read (any more)."""
    own = Path(__file__).parent / "frontend/prelude" / file.removeprefix(PRELUDE)
    try:
        return (own if file.startswith(PRELUDE) else Path(file)).read_text(encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError):
        return None


def render(diagnostic: Diagnostic, source: str | Callable[[str], str | None] = "") -> str:
    """The diagnostic as people read it. `source`: the text of the file, or a function that gives a file's text."""
    head = f"error[{diagnostic.code}]: {diagnostic.message}"
    if diagnostic.span is not None:
        head = f"{diagnostic.span}: {head}"
    lines = [head]
    if diagnostic.span is not None:
        main = diagnostic.span.file
        labels = diagnostic.labels or (Label(diagnostic.span, ""),)
        for file, line in sorted({(k.span.file, k.span.line) for k in labels}, key=lambda p: (p[0] != main, p)):
            text = source if isinstance(source, str) else source(file)
            here = [k for k in labels if (k.span.file, k.span.line) == (file, line)]
            if file != main:
                lines.append(f"{min(here, key=lambda k: k.span.column).span}:")
            lines += _marked_line(text or "", line, here)
    if diagnostic.help:
        lines.append(f"help: {diagnostic.help}")
    return "\n".join(lines)


def _marked_line(text: str, number: int, labels: list[Label]) -> list[str]:
    """One line of the source, carets under it, remarks under these: the rightmost beside its carets."""
    rows = text.split("\n")
    if not 1 <= number <= len(rows):
        return []
    row = _printable(rows[number - 1].rstrip("\r"))
    labels = sorted(labels, key=lambda l: l.span.column)
    row, cut = _excerpt(row, labels[0].span.column)
    marks = ""
    for label in labels:
        end = label.span.end_column - cut if label.span.end_line == number else len(row.rstrip()) + 1
        begin = max(1, label.span.column - cut)
        start = _width(row[: begin - 1])
        length = max(1, _width(row[begin - 1 : end - 1]))
        marks = marks.ljust(start)[: max(start, len(marks))] + "^" * length
    lines = [row, f"{marks} {labels[-1].text}".rstrip()]
    for label in reversed(labels[:-1]):
        if label.text:
            lines.append(" " * _width(row[: label.span.column - cut - 1]) + label.text)
    return lines


def _printable(row: str) -> str:
    """A line without what moves a terminal's cursor; as many characters as before."""
    return "".join(
        " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" else c for c in row
    )


def _excerpt(row: str, column: int) -> tuple[str, int]:
    """What is shown of a line, around a column if it is long, and how many characters were left out before."""
    if len(row) <= LONGEST_LINE:
        return row, 0
    cut = max(0, min(column - LONGEST_LINE // 2, len(row) - LONGEST_LINE))
    return row[cut : cut + LONGEST_LINE], cut


def _width(text: str) -> int:
    """Columns of a terminal that text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
