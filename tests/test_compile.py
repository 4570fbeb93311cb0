"""Kernels to objects: exact arithmetic, no loose ends, a cache that never lies; segments and their team."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native import run
from native_roles import Loaded

from alphac.backends.cache import Cache
from alphac.backends.compile import assembly, compile_object
from alphac.backends.emit import lower_programs
from alphac.backends.kernels import TYPES
from alphac.backends.objects import undefined_symbols
from alphac.backends.registry import host_target, target, targets
from alphac.backends.target import KernelSource, Target
from alphac.backends.team import support
from alphac.backends.vector import SCALARS
from alphac.ir.core import Port, Value
from alphac.ir.errors import InternalError
from alphac.ir.schedule import Buffer, Exchange, Guard, Kernel, Launch, Program, Repeat, View
from alphac.ir.typesys import F32, I64, Dim, TensorType

NAMES = {**SCALARS, **TYPES}
MULTIPLY_ADD = """
def k_multiply_add(out, x, y, z, shards, first, merges, scratch, thread, threads):
    size = div(shards * 64, threads)
    for i in range(thread * size, thread * size + size):
        out[i] = x[i] * y[i] + z[i]
"""


def multiply_add(name: str = "k_multiply_add") -> KernelSource:
    return KernelSource(name, MULTIPLY_ADD.replace("k_multiply_add", name), (F32,) * 4, namespace=NAMES)


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def floats(*values: float, n: int = 64) -> np.ndarray:
    return np.resize(np.array(values, np.float32), n)


def test_a_product_and_a_sum_are_rounded_twice(store: Cache):
    data = compile_object([multiply_add()], support(host_target()), host_target(), store)
    x, z, out = floats(1 + 2**-12), floats(-1 - 2**-11), floats(7.0)  # fma(x, x, z) is 2**-24
    Loaded(data).call("k_multiply_add", *(a.ctypes.data for a in (out, x, x, z)), 1, 0, 0, 0, 0, 1)
    assert np.all(out == 0)


@pytest.mark.parametrize("name", sorted(n for n, t in targets().items() if not t.is_gpu))
def test_every_target_uses_its_vector_width_and_leaves_nothing_undefined(name: str, store: Cache):
    there = target(name)
    text = assembly([multiply_add()], support(there), there)
    assert not undefined_symbols(compile_object([multiply_add()], support(there), there, store))
    assert "fmadd" not in text
    if there.triple.startswith("x86_64"):
        widest = next((r for r in ("zmm", "ymm", "xmm") if r in text), "")
        assert widest == {16: "zmm", 8: "ymm", 4: "xmm"}[there.lanes]


def test_equal_content_is_compiled_once_and_damage_is_noticed(store: Cache, monkeypatch: pytest.MonkeyPatch):
    from alphac.backends import compile as compiling

    made: list[str] = []
    real = compiling._optimized
    monkeypatch.setattr(compiling, "_optimized", lambda s, t: made.append(s.name) or real(s, t))
    sources = [multiply_add("k_a"), multiply_add("k_b"), multiply_add("k_a")]
    there = host_target()
    first = compile_object(sources, support(there), there, store)
    assert made == ["k_a", "k_b"]
    assert compile_object(sources, support(there), there, store) == first
    assert compile_object(sources[:1], support(there), there, store)
    assert made == ["k_a", "k_b"], "a kernel comes from the cache in another object too"
    for entry in store.directory.glob("??/*"):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 1
        entry.write_bytes(bytes(data))
    assert compile_object(sources, support(there), there, store) == first
    assert made == ["k_a", "k_b"] * 2


def test_workers_compile_what_one_process_does(store: Cache, tmp_path: Path):
    sources = [multiply_add(f"k_{i}") for i in range(6)]
    there = host_target()
    alone = compile_object(sources, support(there), there, store, processes=1)
    assert compile_object(sources, support(there), there, Cache(tmp_path / "other"), processes=2) == alone


@pytest.mark.parametrize("processes", [1, 2])
def test_a_kernel_that_does_not_compile_is_shown(store: Cache, processes: int):
    bad = KernelSource(
        "k_bad",
        MULTIPLY_ADD.replace("k_multiply_add", "k_bad").replace("x[i] *", "nowhere *"),
        (F32,) * 4,
        namespace=NAMES,
    )
    sources = [multiply_add(f"k_{i}") for i in range(5)] + [bad]
    with pytest.raises(InternalError, match="`nowhere`"):
        compile_object(sources, support(host_target()), host_target(), store, processes=processes)


def test_a_cache_that_cannot_be_written_is_no_cache(tmp_path: Path):
    (tmp_path / "file").write_text("")
    store = Cache(tmp_path / "file")
    assert compile_object([multiply_add()], support(host_target()), host_target(), store)
    assert store.get("ab" * 32) is None


# ---------------------------------------------------------------------- segments
N = 96
SOURCES = {
    "shift": """
def k_shift(to, of, index, shards, first, merges, scratch, thread, threads):
    for i in range(div(96 * thread, threads), div(96 * (thread + 1), threads)):
        to[i] = of[mod(i + 7, 96)] + f32(index)
""",
    "break": """
def k_break(loss, of, shards, first, merges, scratch, thread, threads):
    if thread == 0:
        loss[0] = f32(1.0) / of[0]
""",
}


def by_name(kernel: Kernel, target: Target) -> KernelSource:
    name = kernel.name
    parameters = tuple(b.type.dtype for b in kernel.buffers())
    return KernelSource(f"k_{name}", SOURCES[name], parameters, len(kernel.loops), 192, NAMES)


def hand_made(name: str, stored: Buffer, read: Buffer, loops: tuple[Value, ...] = ()) -> Launch:
    value, operand = Value(stored.type), Value(read.type)
    return Launch(Kernel(name, ((value, View(stored)),), {operand: View(read)}, loops=loops))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("inside", [False, True])
def test_threads_meet_after_every_kernel(store: Cache, threads: int, inside: bool):
    """What a thread reads was written by another one in the kernel before, 2 * 300 times; also in a loop that the
    runtime runs."""
    x, y = (Buffer(n, TensorType(F32, (Dim("d", N),)), "argument", Port("input", n)) for n in "xy")
    index = Value(TensorType(I64))
    body = (hand_made("shift", y, x, (index,)), hand_made("shift", x, y, (index,)))
    spare = Buffer("s", TensorType(F32), "nodes")
    steps = (Repeat(300, index, True, (*body, Exchange(((spare, "sum"),))) if inside else body),)
    program = Program("loops", [x, y, spare], steps, [(Port("input", b.name), b) for b in (x, y)], [])
    code = lower_programs([program], replace(host_target(), lowering=by_name))
    given = [np.arange(N, dtype=np.float32), np.zeros(N, np.float32)]
    (role,), stopped = run(program, code, given, 1, [1], threads, store)
    expected = given[0]
    for i in reversed(range(300)):
        for _ in range(2):
            expected = np.roll(expected, -7) + np.float32(i)
    assert stopped == 0
    np.testing.assert_array_equal(role.read(x), expected)


@pytest.mark.parametrize("value", [1.0, 0.0, np.nan])
def test_a_guard_stops_the_segment(store: Cache, value: float):
    x, loss, after = (Buffer(n, TensorType(F32), "argument", Port("input", n)) for n in ("x", "loss", "after"))
    steps = (Guard((x,)), hand_made("break", loss, x), Guard((x, loss)), hand_made("break", after, x))
    program = Program("guarded", [x, loss, after], steps, [(Port("input", b.name), b) for b in (x, loss, after)], [])
    code = lower_programs([program], replace(host_target(), lowering=by_name))
    given = [np.array(v, np.float32) for v in (value, 5, 5)]
    (role,), stopped = run(program, code, given, 1, [1], 2, store)
    assert stopped == {"1.0": 0, "0.0": 2, "nan": 1}[str(value)]
    assert (role.read(after) == 5) == (stopped != 0)
    assert code.records["guarded"]["steps"][0]["guards"] == [[0], [0, 1]]
    assert code.scratch == 192


def test_a_kernel_is_exported_for_replay(store: Cache):
    x, loss = (Buffer(n, TensorType(F32), "argument", Port("input", n)) for n in ("x", "loss"))
    program = Program("one", [x, loss], (hand_made("break", loss, x),), [], [])
    code = lower_programs([program], replace(host_target(), lowering=by_name))
    ((kernel,),) = [s["kernels"] for s in code.records["one"]["steps"]]
    assert kernel["buffers"] == [1, 0] and kernel["stores"] == 1
    out, two = floats(0), floats(2)
    (symbol,) = code.symbols["one"]
    Loaded(code.object(store)).call(symbol, out.ctypes.data, two.ctypes.data, 1, 0, 0, 0, 0, 1)
    assert out[0] == 0.5
