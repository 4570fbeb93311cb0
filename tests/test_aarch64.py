"""Code for aarch64, Linux's and macOS's, as any machine compiles it: what it is, and what is not in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from everyop_cases import Case
from everyop_table import CASES
from shipped import EVERYWHERE
from test_vector_widths import VECTORIZED

from alphac import pipeline
from alphac.backends.cache import Cache
from alphac.backends.compile import assembly
from alphac.backends.emit import Code, lower_programs
from alphac.backends.objects import machine, undefined_symbols
from alphac.backends.registry import target
from alphac.backends.team import support
from alphac.backends.translate import translate
from alphac.ir.passes.project import schedule
from alphac.runtime.bundle import read_bundle
from alphac.runtime.errors import KernelFailed
from alphac.runtime.executor import Executor

EXAMPLES = Path(__file__).parents[1] / "examples"
FORMATS = {"aarch64": "ELF", "aarch64-macos": "Mach-O"}
QUICK = ("digits_mlp", "kmeans_digits")
NAMES = EVERYWHERE
FUSED = re.compile(r"\b(?:fn?m(?:add|sub)|fml[as])\b")


def lowered(source: Path, name: str) -> Code:
    module = pipeline.simplify(pipeline.differentiate(pipeline.parse_and_elaborate(source, {})))
    return lower_programs(pipeline.schedules(module).values(), target(name))


def functions(text: str) -> dict[str, str]:
    """Assembly by the exported function that it is part of."""
    parts = re.split(r"^_?([a-z]\w+):", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("example", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_objects_are_for_the_machine_and_stand_alone(example: str, name: str) -> None:
    """Of every example. A product and a sum are one instruction only where the source says fma."""
    code = lowered(EXAMPLES / example / f"{example}.alpha", name)
    data = code.object()
    assert machine(data) == (FORMATS[name], "aarch64")
    assert not undefined_symbols(data)
    found = functions(assembly(code.sources.values(), code.segments, code.target))
    assert code.sources.keys() <= found.keys()
    fused = {k for k in code.sources if FUSED.search(found[k])}
    assert fused, "sums of products are fma's"
    assert not [k for k in fused if "llvm.fma" not in translate(code.sources[k])]


FLEET = """
[[endpoint]]
name = "desk"
target = "x86-64-v3"

[[endpoint]]
name = "board"
target = "aarch64"

[[endpoint]]
name = "mac"
target = "aarch64-macos"
speed = 2
"""


def test_every_endpoint_has_its_own_code(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    source = EXAMPLES / "digits_mlp" / "digits_mlp.alpha"
    plan = pipeline.Plan.of(fleet=tmp_path / "fleet.toml")
    bundle = read_bundle(pipeline.compile_file(source, out=tmp_path / "b", plan=plan).path)
    found = [machine(bundle.read(bundle.class_of(role.role_class).object)) for role in bundle.all_roles()]
    assert found == [("ELF", "x86-64"), ("ELF", "aarch64"), ("Mach-O", "aarch64")]
    assert [role.shards for role in bundle.all_roles()] == [8, 8, 16]
    with pytest.raises(KernelFailed, match=r"objects/aarch64.*\.o is "):
        Executor(bundle, bundle.class_of(bundle.role(2).role_class), 16, 1)


PRODUCT = """system product
dim rows = 256, terms = 512, columns = 384
grain 2 of rows
region product(x: f32[rows, terms]) -> f32[rows, columns] {
    param w: f32[terms, columns] = uniform(-1, 1)
    x @ w
}
"""


@pytest.mark.parametrize("name", FORMATS)
def test_the_tile_of_a_product_stays_in_registers(name: str, tmp_path: Path) -> None:
    """Its loop over the terms: an fma for each of 8 by 3 vectors, a load for each row and vector, none from the
    stack."""
    source = tmp_path / "product.alpha"
    source.write_text(PRODUCT)
    code = lowered(source, name)
    text = assembly(code.sources.values(), "", code.target, Cache(tmp_path / "cache"))
    blocks = re.findall(r"^(\.?L\w+):.*\n((?:\t.*\n)*?\tb\.\w+\t\1\n)", text, flags=re.MULTILINE)
    loops = [block for _, block in blocks if len(re.findall(r"\bfmla\b", block)) == 24]
    assert loops
    for loop in loops:
        loaded = sum(2 if load == "ldp" else 1 for load in re.findall(r"\b(ld[pru]\w*)\b", loop))
        assert loaded <= 8 + 3
        assert "[sp" not in loop


LANES = {"f32": "4s", "f64": "2d", "u8": "16b"}  # of a whole register


@pytest.mark.parametrize("case", [c for c in CASES if str(c) in VECTORIZED], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_arithmetic_is_done_in_whole_registers(name: str, case: Case) -> None:
    code = lower_programs([schedule(case.function)], target(name))
    text = assembly(code.sources.values(), "", code.target)
    assert re.search(rf"\b(?:f?add|f?mul|fmla)(?:\tv\d+)?\.{LANES[case.dtype.name]}\b", text)
    assert not re.search(r"\bz\d+\.[bhsd]\b", text), "these registers not every processor has"


def test_equal_kernels_of_two_systems_are_two_in_the_cache(tmp_path: Path) -> None:
    source = tmp_path / "product.alpha"
    source.write_text(PRODUCT)
    store = Cache(tmp_path / "cache")
    for name in (*FORMATS, *FORMATS):
        assert machine(lowered(source, name).object(store))[0] == FORMATS[name]


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_before_a_meeting_is_seen_behind_it(name: str) -> None:
    """Threads look at each other's words with loads that acquire, and change them with stores that release."""
    made = target(name)
    found = functions(assembly([], support(made), made))
    looks, acquired, released = r"\bldr\b.*\[x0\]", r"\blda(?:r|pu?r)\b", r"\bstlr\b"
    assert re.search(acquired, found["alphac_wait"]) and not re.search(looks, found["alphac_wait"])
    assert len(re.findall(acquired, found["team_worker"])) == 2  # is there work, or an end?
    assert re.search(r"\b(?:ldaddal|stlxr)\b", found["team_worker"])  # done
    for function in ("alphac_barrier", "team_run", "alphac_burst"):
        assert len(re.findall(released, found[function])) == 1, function
