"""Data files as they come: of odd types, damaged, cut short, from other programs. What the compiler says of each."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import call

from alphac.diagnostics import Diagnostics, render, source_of
from alphac.frontend.elaborate import elaborate
from alphac.frontend.parse import parse

ROWS = 64
X = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, ROWS).astype(np.int32)
PROGRAM = """system s
dim batch = 8, width = 4, classes = 3
grain 2 of batch
data d from "FILE" {
    x: f32[width] = COLUMN
    y: i32[]      = y
}
param w: f32[width, classes] = glorot
region f(x: f32[batch, width]) -> f32[batch, classes] { x @ w }
learn w with sgd(0.1) minimizing { mean(cross_entropy(f(x), y)) }
train on d for 2 epochs
"""
Make = Callable[[Path], object]


def arrays(x: object = X, y: object = Y, *, packed: bool = False) -> Make:
    save = np.savez_compressed if packed else np.savez
    return lambda path: save(path, x=np.asarray(x), y=np.asarray(y))


def members(x: bytes, y: bytes) -> Make:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", x)
            archive.writestr("y.npy", y)

    return make


def npy(values: np.ndarray, shape: str, code: str = "<f4") -> bytes:
    """An array's bytes behind a header that may say something else."""
    header = f"{{'descr': {code!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + values.tobytes()


def damaged(place: int) -> Make:
    def make(path: Path) -> None:
        arrays(packed=True)(path)
        content = bytearray(path.read_bytes())
        content[place] ^= 0x55
        path.write_bytes(content)

    return make


def written(content: bytes) -> Make:
    return lambda path: path.write_bytes(content)


def changed(values: np.ndarray, row: int, value: float) -> np.ndarray:
    made = values.copy()
    made[row] = value
    return made


GOOD_Y = npy(Y, f"({ROWS},)", "<i4")
REFUSED: dict[str, tuple[Make, str, str]] = {
    "big-endian": (arrays(X.astype(">f4")), "E303", "`x` in `d.npz` is stored as big-endian float32"),
    "half": (arrays(X.astype(np.float16)), "E303", "is stored as float16"),
    "complex": (arrays(X.astype(np.complex64)), "E303", "is stored as complex64"),
    "objects": (arrays(X.astype(object)), "E303", "is stored as object"),
    "words": (arrays(X.astype("U8")), "E303", "is stored as str"),
    "unsigned": (arrays(y=Y.astype(np.uint64)), "E303", "is stored as uint64"),
    "flat": (arrays(X[:, 0]), "E303", "rows of `x` in `d.npz` are single numbers"),
    "one number": (arrays(np.float32(3)), "E305", "`x` in `d.npz` has no rows"),
    "no rows": (arrays(X[:0], Y[:0]), "E305", "has no rows"),
    "few": (arrays(X[:5], Y[:5]), "E306", "`d` has 5 examples to train on, fewer than one batch of 8"),
    "uneven": (arrays(X, Y[:60]), "E308", "`x` 64, `y` 60"),
    "label": (arrays(y=changed(Y, 9, 3)), "E304", "`y` is 3 in row 9, and `classes` has 3 positions"),
    "negative label": (arrays(y=changed(Y, 9, -1)), "E304", "`y` is -1 in row 9"),
    "wide label": (arrays(y=Y.astype(np.int64) + 2**40), "E304", "in row 0"),
    "other order": (arrays(np.asfortranarray(X)), "E301", "Fortran order"),
    "nothing in it": (np.savez, "E302", "`d.npz` holds no `x`"),
    "no bytes": (written(b""), "E301", "not a good npz file"),
    "no archive": (written(b"hello"), "E301", "not a good npz file"),
    "damaged codes": (damaged(60), "E301", "not a good npz file"),
    "damaged text": (damaged(120), "E301", "not a good npz file"),
    "damaged numbers": (damaged(200), "E301", "not a good npz file"),
    "absurd": (members(npy(X, "(1099511627776, 4)"), GOOD_Y), "E301", "bytes are missing at its end"),
    "negative": (members(npy(X, "(-5, 4)"), GOOD_Y), "E301", r"the shape \(-5, 4\) is none"),
    "short": (members(npy(X[:9], f"({ROWS}, 4)"), GOOD_Y), "E301", "880 bytes are missing at its end"),
    "a call": (members(npy(X, '(64, __import__("os"))'), GOOD_Y), "E301", "not a good npz file"),
    "records": (members(npy(X, "(64,)", "[('a', '<f4')]"), GOOD_Y), "E301", "not a good npz file"),
    "a folder": (lambda path: path.mkdir(), "E301", "not a good npz file"),
    "a circle": (lambda path: path.symlink_to(path), "E30[01]", "d.npz"),
}
TABLES: dict[str, tuple[bytes, str, str]] = {
    "twice": (b"x1,x1,y\n1,2,0\n", "E301", "two columns are called `x1`"),
    "hole": (b"x1,x2,y\n1,2,0\n3,,1\n", "E301", "row 3 of column `x2` is ``, not a number"),
    "semicolons": (b"x1;x2;y\n1;2;0\n", "E301", "row 2 of column `x1;x2;y` is `1;2;0`"),
    "open quote": (b'x1,x2,y\n"1,2,0\n3,4,1\n', "E301", "row 2 has 1 fields, not 3"),
    "zero byte": (b"x1,x2,y\n1,2,0\0\n", "E301", "d.csv"),
    "other letters": ("x1,x2,ÿ\n1,2,0\n".encode("latin-1"), "E301", "d.csv"),
    "no header": (b"", "E301", "it has no header"),
    "words": (b"x1,x2,y\n1,two,0\n", "E301", "row 2 of column `x2` is `two`, not a number"),
}


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    assert "error[E300]: there is no data file" in answer(tmp_path, "d" * 5000 + ".npz")


def answer(directory: Path, file: str, column: str = "x") -> str:
    """What the compiler says, as people read it."""
    source = directory / "s.alpha"
    source.write_text(PROGRAM.replace("FILE", file).replace("COLUMN", column))
    with pytest.raises(Diagnostics) as caught:
        elaborate(parse(source.read_text(), str(source)), overrides={}, directory=directory)
    shown = [render(d, source_of) for d in caught.value.diagnostics]
    assert all(f"{source}:" in text and "^" in text and "help: " in text for text in shown)
    return "\n".join(shown)


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_refused(name: str, tmp_path: Path) -> None:
    make, code, message = REFUSED[name]
    make(tmp_path / "d.npz")
    found = answer(tmp_path, "d.npz")
    assert re.search(rf"error\[{code}\]: .*{message}", found), found


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_refused(name: str, tmp_path: Path) -> None:
    content, code, message = TABLES[name]
    (tmp_path / "d.csv").write_bytes(content)
    found = answer(tmp_path, "d.csv", "columns(x1, x2)")
    assert f"error[{code}]" in found and message in found


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["a nan", "an inf"])
def test_a_run_names_the_example_that_is_no_number(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs may mask such examples, so that only a loss that is none is refused."""
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", x=changed(X, 21, value), y=Y)
    Path("s.alpha").write_text(PROGRAM.replace("FILE", "d.npz").replace("COLUMN", "x"))
    assert call("compile", "s.alpha").code == 0
    answer = call("run", "s.bundle", "--out", "run")
    what = "a nan" if np.isnan(value) else "an inf"
    assert answer.code == 3
    assert f"help: column `x` of `d` has {what} in row 21: leave such examples out" in answer.out.replace("\n", " ")


def test_what_a_spreadsheet_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark of UTF-8 at the beginning, lines that end in two characters, and spaces."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{k},{k}.5 ,{k % 3}\r\n" for k in range(16))
    Path("d.csv").write_bytes(f"\ufeffx1, x2,y\r\n{rows}".encode())
    text = PROGRAM.replace("FILE", "d.csv").replace("COLUMN", "columns(x1, x2)").replace("width = 4", "width = 2")
    Path("s.alpha").write_text(text)
    assert call("compile", "s.alpha").code == 0
    assert call("run", "s.bundle", "--out", "run").code == 0
