"""f64 made of integers, for devices without it: every operation gives the bits that this machine's f64 gives."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
from metal_double import COMMAND, HEADER, can_compile

from alphac.backends.c.soft64 import TEXT, softened

pytestmark = pytest.mark.skipif(not can_compile(), reason="needs g++")
OPERATIONS = {
    "add": ("x + y", 2),
    "sub": ("x - y", 2),
    "mul": ("x * y", 2),
    "div": ("x / y", 2),
    "fma": ("fma(x, y, z)", 3),
    "sqrt": ("sqrt(x)", 1),
    "neg": ("-x", 1),
    "fabs": ("fabs(x)", 1),
    "copysign": ("copysign(x, y)", 2),
    "floor": ("floor(x)", 1),
    "ceil": ("ceil(x)", 1),
    "rint": ("rint(x)", 1),
    "trunc": ("trunc(x)", 1),
    "to f32 and back": ("KIND((float)x)", 1),
    "from long": ("KIND(bits_as<long>(x))", 1),
    "from ulong": ("KIND(bits_as<ulong>(x))", 1),
    "from int": ("KIND((int)bits_as<ulong>(x))", 1),
    "from uint": ("KIND((uint)bits_as<ulong>(x))", 1),
    "to long": ("fabs(x) < KIND(9.2e18f) ? KIND((long)x) : x", 1),
    "compared": ("KIND(int(x < y) + 2 * (x <= y) + 4 * (x > y) + 8 * (x >= y) + 16 * (x == y) + 32 * (x != y))", 2),
}


def numbers(count: int) -> np.ndarray:
    """Bits of all kinds: any, near each other, small and large integers, ends, subnormal ones; NaNs and infinities."""
    random = np.random.default_rng(5)
    any_ = random.integers(0, 1 << 64, count, np.uint64)
    near = (1.0 + random.integers(-40, 40, count) * 2.0**-52) * 2.0 ** random.integers(-3, 3, count)
    small = random.integers(-3000, 3000, count) / 2.0 ** random.integers(0, 12, count)
    tiny = random.standard_normal(count) * 2.0 ** random.integers(-1074, -1000, count).astype(float)
    singles = random.standard_normal(count) * 2.0 ** random.integers(-155, 130, count).astype(float)
    ends = np.array(
        [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 2.0**-1022, 1.7976931348623157e308, 2.0**52]
    )
    pools = (
        any_,
        near.view(np.uint64),
        small.view(np.uint64),
        tiny.view(np.uint64),
        singles.view(np.uint64),
        ends.view(np.uint64),
    )
    return np.stack([p[random.integers(0, len(p), count)] for p in pools])[
        random.integers(0, len(pools), count), np.arange(count)
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory = tmp_path_factory.mktemp("soft64")
    lines = [HEADER, TEXT]
    for n, (text, _) in enumerate(OPERATIONS.values()):
        for name, kind in (("soft", "Double"), ("hard", "double")):
            lines.append(
                f'extern "C" void {name}{n}(long n, const {kind}* a, const {kind}* b, const {kind}* c, {kind}* to) {{\n'
                f"    for (long i = 0; i < n; ++i) {{ const {kind} x = a[i], y = b[i], z = c[i];"
                f" to[i] = {text.replace('KIND', kind)}; }}\n}}\n"
            )
    source, made = directory / "soft.cpp", directory / "soft.so"
    source.write_text("".join(lines))
    subprocess.run([*COMMAND, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_has_the_bits_of_the_hardware(operation: str, library: ctypes.CDLL) -> None:
    count, number = 200_000, list(OPERATIONS).index(operation)
    given = [np.roll(numbers(count), n * 7919) for n in range(3)]
    found = [np.zeros(count, np.uint64) for _ in range(2)]
    for name, to in zip(("soft", "hard"), found, strict=True):
        getattr(library, f"{name}{number}")(count, *(ctypes.c_void_p(a.ctypes.data) for a in (*given, to)))
    ours, wanted = found
    both_nan = np.isnan(ours.view(np.float64)) & np.isnan(wanted.view(np.float64))
    differing = np.flatnonzero((ours != wanted) & ~both_nan)
    assert not differing.size, [(*(hex(a[i]) for a in given), hex(ours[i]), hex(wanted[i])) for i in differing[:3]]


def test_numbers_of_f64_are_bits_and_those_of_f32_stay() -> None:
    text = softened("const double t = 0.5 * x + 1e-08; const float u = 0.5f;")
    assert text.endswith(
        "const Double t = double_of(0x3FE0000000000000UL) * x + double_of(0x3E45798EE2308C3AUL); const float u = 0.5f;"
    )
