"""Examples: formats, splits, order, and which rows a role reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from alphac.ir.ops.philox import feistel
from alphac.ir.oracle import Oracle
from alphac.ir.typesys import I64, U32
from alphac.runtime import shuffle
from alphac.runtime.columns import open_arrays, open_columns
from alphac.runtime.data import Dataset, Feed, held_out
from alphac.runtime.errors import DataRefused
from alphac.runtime.records import ColumnRecord, DataRecord, PortRecord

X = np.arange(24, dtype=np.float32).reshape(6, 4)
LABEL = np.array([3, 1, 3, 2, 1, 3])
COLUMNS = (ColumnRecord("x", "x", "f32", (2, 2)), ColumnRecord("label", "label", "i64", ()))


def write(path: Path, format: str) -> Path:
    file = path / f"data.{format}"
    if format == "npz":
        np.savez(file, x=X, label=LABEL)
    elif format == "compressed":
        with file.open("wb") as stream:
            np.savez_compressed(stream, x=X, label=LABEL)
    else:
        save_file({"x": X, "label": LABEL}, file)
    return file


# ---------------------------------------------------------------------- formats
@pytest.mark.parametrize("format", ["npz", "compressed", "safetensors"])
def test_formats_of_named_arrays(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alphac.runtime.columns.READ", 0)
    file = write(tmp_path, format)
    x, label = open_columns(file, "npz" if format == "compressed" else format, COLUMNS)
    np.testing.assert_array_equal(x, X.reshape(6, 2, 2))
    np.testing.assert_array_equal(label, LABEL)
    assert isinstance(label, np.memmap) == (format != "compressed")


def test_an_array_that_lies_askew_is_read(tmp_path: Path) -> None:
    """A zip file's members begin anywhere; what kernels read lies at multiples of its element."""
    for x in open_columns(write(tmp_path, "npz"), "npz", COLUMNS):
        assert x.ctypes.data % x.itemsize == 0


def test_npy_and_text(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    (x,) = open_columns(tmp_path / "x.npy", "npy", [ColumnRecord("x", "array", "f32", (4,))])
    np.testing.assert_array_equal(x, X)
    (tmp_path / "t.txt").write_bytes("grün".encode())
    (text,) = open_columns(tmp_path / "t.txt", "text", [ColumnRecord("t", "text", "u8", (2,), window=2, stride=1)])
    assert bytes(text) == "grün".encode()


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    file.write_text('\ufeffa,"b c", d\n1,2.5,-3\n\n4,1e-3,6\n', encoding="utf-8")
    one, two, three = open_columns(
        file,
        "csv",
        [ColumnRecord("d", "d", "i64", ()), ColumnRecord("b", "b c", "f64", ()), ColumnRecord("m", "a,d", "i64", (2,))],
    )
    assert one.tolist() == [-3, 6]
    assert two.tolist() == [2.5, 1e-3]
    assert three.tolist() == [[1, -3], [4, 6]]


def test_stored_values_are_widened_exactly_and_never_narrowed(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.array([[1, 2], [250, 4]], np.uint8), y=np.array([0.1, 0.2]))
    (x,) = open_columns(tmp_path / "d.npz", "npz", [ColumnRecord("x", "x", "i32", (2,))])
    data = Dataset(DataRecord("d", "", "npz", (ColumnRecord("x", "x", "i32", (2,)),)), tmp_path / "d.npz")
    out = np.zeros((2, 2), np.int32)
    data.read("x", np.array([1, 0]), out)
    assert out.tolist() == [[250, 4], [1, 2]]
    assert x.dtype == np.uint8
    with pytest.raises(DataRefused, match="is float64, which f32 does not hold"):
        open_columns(tmp_path / "d.npz", "npz", [ColumnRecord("y", "y", "f32", ())])


BAD: dict[str, tuple[str, bytes | None, ColumnRecord]] = {
    "No such file": ("npz", None, COLUMNS[0]),
    "no column 'z'": ("npz", b"good", ColumnRecord("z", "z", "f32", ())),
    "not a zip file": ("npz", b"PK nothing", COLUMNS[0]),
    "examples of shape": ("npz", b"good", ColumnRecord("x", "x", "f32", (3,))),
    "cannot be read as npy": ("npy", b"nothing", COLUMNS[0]),
    "cannot be read as safetensors": ("safetensors", b"nothing at all", COLUMNS[0]),
    "has 1 fields, not 2": ("csv", b"a,b\n1,2\n3\n", ColumnRecord("a", "a", "i64", ())),
    "column `a`: invalid literal": ("csv", b"a\nx\n", ColumnRecord("a", "a", "i64", ())),
    "too large": ("csv", b"a\n99999999999999999999999\n", ColumnRecord("a", "a", "i64", ())),
    "no column 'c'": ("csv", b"a,b\n1,2\n", ColumnRecord("c", "a,c", "i64", (2,))),
    "codec can't decode": ("csv", b"a\n\xff\n", ColumnRecord("a", "a", "i64", ())),
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_files_are_refused(tmp_path: Path, reason: str) -> None:
    format, content, column = BAD[reason]
    file = write(tmp_path, "npz") if content == b"good" else tmp_path / f"bad.{format}"
    if content is not None and content != b"good":
        file.write_bytes(content)
    with pytest.raises(DataRefused, match=reason) as caught:
        open_columns(file, format, [column])
    assert caught.value.exit_code == 11


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", x=np.array([print, None]))
    with pytest.raises(DataRefused, match="allow_pickle"):
        open_columns(tmp_path / "o.npz", "npz", [ColumnRecord("x", "x", "f32", ())])
    with pytest.raises(DataRefused):
        open_arrays(tmp_path / "o.npz")


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 700), place=st.integers(0, 699), bits=st.integers(0, 255))
def test_a_damaged_file_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, cut: int, place: int, bits: int
) -> None:
    file = write(tmp_path_factory.mktemp("npz"), "npz")
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= bits
    file.write_bytes(content[: len(content) - cut % len(content)] if cut % 3 else content)
    try:
        for array in open_columns(file, "npz", COLUMNS):
            array.sum()
    except DataRefused:
        pass


def test_arrays_for_predict(tmp_path: Path) -> None:
    for format in ("npz", "safetensors"):
        found = open_arrays(write(tmp_path, format))
        np.testing.assert_array_equal(found["x"], X)
        assert set(found) == {"x", "label"}


# ---------------------------------------------------------------------- random order
def test_philox_known_answers() -> None:
    assert shuffle.philox((0, 0), (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 0xFFFFFFFF
    assert shuffle.philox((ones, ones), (ones, ones, ones, ones)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert shuffle.philox((0xA4093822, 0x299F31D0), pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20)
def test_the_permutation_is_the_compilers(size: int, low: int, high: int) -> None:
    k = Oracle()
    expected = feistel(k, k.lanes(np.arange(size), I64), size, k.const(low, U32), k.const(high, U32)).array
    found = shuffle.thorp(np.arange(size), size, low, high)
    np.testing.assert_array_equal(found, np.broadcast_to(expected, (size,)))
    assert sorted(found.tolist()) == list(range(size))


def test_permutations_differ_by_seed_stream_and_step_and_not_by_how_they_are_asked() -> None:
    everything = np.arange(97)
    seen = {
        tuple(shuffle.permute(everything, 97, seed, stream, step).tolist())
        for seed in (0, 1, -1)
        for stream in (0, 1)
        for step in (0, 1)
    }
    assert len(seen) == 12
    whole = shuffle.permute(everything, 97, 5, 7, 3)
    np.testing.assert_array_equal(shuffle.permute(np.array([50, 3]), 97, 5, 7, 3), whole[[50, 3]])
    for size in (0, 1 << 56):
        with pytest.raises(ValueError, match="a permutation of"):
            shuffle.thorp(everything, size, 0, 0)


# ---------------------------------------------------------------------- splits
def dataset(tmp_path: Path, labels: Sequence[int] | np.ndarray = LABEL, **changes: Any) -> Dataset:
    labels = np.asarray(labels)
    np.savez(tmp_path / "d.npz", x=np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2), label=labels)
    columns = (ColumnRecord("x", "x", "f32", (2,)), ColumnRecord("label", "label", "i64", ()))
    return Dataset(DataRecord("d", "d.npz", "npz", columns)._replace(**changes), tmp_path / "d.npz")


def listed(data: Dataset, name: str) -> list[int]:
    split = data.split(name)
    return split.at(np.arange(split.count)).tolist()


def test_held_out_counts() -> None:
    assert [held_out(0.25, n) for n in (0, 1, 2, 3, 4, 44)] == [0, 0, 1, 1, 1, 11]
    assert held_out(0.3, 5) == 2  # half up, though 0.3 * 5 is below 1.5 in binary
    assert held_out(0.2, 1797) == 359


def test_splits_cover_everything_once(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 203)
    for changes in (
        {},
        {"held_out": 0.2},
        {"held_out": 0.2, "split_kind": "tail"},
        {"held_out": 0.2, "stratified_by": "label"},
    ):
        data = dataset(tmp_path, labels, **changes)
        train, test = listed(data, "train"), listed(data, "test")
        assert sorted([*train, *test]) == list(range(203))
        assert (np.diff(train) > 0).all() and (np.diff(test) > 0).all()
        assert len(test) == (0 if not changes else len(test))
    for label in range(5):
        members = labels == label
        assert (labels[test] == label).sum() == held_out(0.2, int(members.sum()))


def test_the_split_is_fixed_by_its_seed(tmp_path: Path) -> None:
    one, same, other = (listed(dataset(tmp_path, range(100), held_out=0.1, split_seed=s), "test") for s in (1, 1, 2))
    assert one == same != other
    assert one == [1, 14, 23, 40, 51, 65, 71, 80, 95, 96]  # known answer: another means that every split changes


def test_columns_must_agree(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, label=LABEL[:5])
    record = DataRecord("d", "", "npz", (ColumnRecord("x", "x", "f32", (4,)), COLUMNS[1]))
    with pytest.raises(DataRefused, match="its columns have 5, 6 examples"):
        Dataset(record, tmp_path / "d.npz")


def test_windows(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(bytes(range(20)))
    columns = tuple(
        ColumnRecord(name, "", "u8", (4,), window=4, stride=3, offset=o) for name, o in (("now", 0), ("next", 1))
    )
    data = Dataset(DataRecord("t", "", "text", columns, held_out=0.34, split_kind="tail"), tmp_path / "t.txt")
    assert data.count == 6  # the last one: elements 15 … 18, and 16 … 19 for the next
    assert listed(data, "test") == [4, 5]
    out = np.zeros((2, 4), np.uint8)
    data.read("next", np.array([5, 0]), out)
    assert out.tolist() == [[16, 17, 18, 19], [1, 2, 3, 4]]


def test_sampling_draws_without_replacement(tmp_path: Path) -> None:
    data = dataset(tmp_path, range(40), held_out=0.5)
    port = PortRecord("sample", "d.train.label", 0, {"count": 20, "seed": 3})
    out = np.zeros(20, np.int64)
    data.sample(port, out)
    assert sorted(out.tolist()) == listed(data, "train")
    with pytest.raises(DataRefused, match="21 examples cannot be drawn"):
        data.sample(port._replace(attributes={"count": 21, "seed": 3}), np.zeros(21, np.int64))


# ---------------------------------------------------------------------- batches
def feeds(data: Dataset, batch: int, shards: int, counts: Sequence[int], ragged: bool = False) -> list[Feed]:
    rows, found, first = batch // shards, [], 0
    for count in counts:
        found.append(Feed(data, "train", batch, first * rows, count * rows, ragged))
        first += count
    return found


def labels(feed: Feed, step: int, count: int = 1) -> list[list[int]]:
    """The labels of this role's rows of some batches."""
    batches = feed.take(step, count)
    rows = batches.listed(feed.size)
    out = np.zeros(rows.shape, np.int64)
    feed.data.read("label", rows.reshape(-1), out.reshape(-1))
    assert len(rows) == batches.count <= count
    return [[int(label) for label in row] for row in out]


@pytest.mark.parametrize("counts", [[4], [1, 3], [2, 1, 1]])
def test_roles_read_the_batch_between_them(tmp_path: Path, counts: list[int]) -> None:
    data = dataset(tmp_path, range(50), shuffle_seed=9)
    (whole,) = feeds(data, 8, 4, [4])
    roles = feeds(data, 8, 4, counts)
    epochs: list[list[int]] = []
    for epoch in range(2):
        seen: list[int] = []
        for step in range(epoch * whole.batches, (epoch + 1) * whole.batches):
            assert whole.valid(step) == 8
            (everything,) = labels(whole, step)
            assert [label for feed in roles for label in labels(feed, step)[0]] == everything
            seen += everything
        assert len(set(seen)) == len(seen) == 48
        epochs.append(seen)
    assert epochs[0] != epochs[1]


def test_without_a_shuffle_the_order_is_the_files_and_rows_need_no_list(tmp_path: Path) -> None:
    (_, feed) = feeds(dataset(tmp_path, range(20)), 8, 4, [1, 3])
    taken = feed.take(3, 4)  # over the end of an epoch
    assert taken.rows is None
    assert taken.firsts is not None
    assert taken.firsts.tolist() == [10, 2, 10, 2]
    assert labels(feed, 1, 2) == [list(range(10, 16)), list(range(2, 8))]


@pytest.mark.parametrize("changes", [{}, {"held_out": 0.25, "split_kind": "tail"}, {"held_out": 0.25}])
def test_many_batches_at_once_are_the_same_as_one_by_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    for shuffle_seed in (-1, 3):
        (feed,) = feeds(dataset(tmp_path, range(90), shuffle_seed=shuffle_seed, **changes), 8, 4, [4])
        single = [labels(feed, step)[0] for step in range(30)]
        several: list[list[int]] = []
        while len(several) < 30:
            several += labels(feed, len(several), 7)
        assert several[:30] == single


def test_a_ragged_batch_says_how_many_are_real(tmp_path: Path) -> None:
    data = dataset(tmp_path, range(100, 121))
    one, two = feeds(data, 8, 4, [3, 1], ragged=True)
    assert (feeds(data, 8, 4, [4])[0].batches, one.batches) == (2, 3)
    assert [one.valid(step) for step in range(4)] == [8, 8, 5, 8]
    assert labels(one, 2) == [[116, 117, 118, 119, 120, 100]]
    assert labels(two, 1, 9) == [[114, 115]]  # the ragged one comes alone
    assert labels(two, 2, 9) == [[100, 100]]


def test_the_order_is_worked_out_in_chunks_without_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = dataset(tmp_path, range(90), shuffle_seed=1)
    found = []
    for chunk in (1, 30, 1 << 16):
        monkeypatch.setattr("alphac.runtime.data.CHUNK", chunk)
        (feed,) = feeds(data, 8, 4, [4], ragged=True)
        found.append([labels(feed, step) for step in range(2 * feed.batches)])
    assert found[0] == found[1] == found[2]
