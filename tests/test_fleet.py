"""Fleet files: what they say, and every wrong one in tests/fleets/ with what it is answered."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from conftest import Golden

from alphac.backends.registry import targets
from alphac.diagnostics import Diagnostics, render
from alphac.fleet import read_fleet, shown_size
from alphac.ir.fleet import LOOPBACK
from alphac.toml_text import read_toml

FLEETS = Path(__file__).parent / "fleets"
WRONG = sorted(p.stem for p in FLEETS.glob("*.toml"))
DESK = """
[[host]]
name = "desk"
memory = "64 GB"
domains = ["rack-1", "room"]

[[host]]
name = "mac"
memory = "16 GiB"
unified = true

[[endpoint]]
name = "desk-cpu"
host = "desk"
target = "x86-64-v4"
threads = 8
compute = { f32 = 900, f64 = 450 }
bandwidth = 40

[[endpoint]]
name = "desk-gpu"
host = "desk"
compute = { f32 = 60e3 }
memory = "80 GB"
memory_domain = "own"

[[endpoint]]
name = "mac-cpu"
host = "mac"
compute = { f32 = 500 }

[[endpoint]]
name = "mac-gpu"
host = "mac"
compute = { f32 = 5_000 }
memory = "8 GB"

[[link]]
between = ["desk", "mac"]
rate = 1.25
latency = 50

[[link]]
between = ["desk-cpu", "desk-gpu"]
rate = 25
latency = 10
staging = 20
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file(name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FLEETS)
    with pytest.raises(Diagnostics) as caught:
        read_fleet(Path(f"{name}.toml"))
    found = caught.value.diagnostics
    text = Path(f"{name}.toml").read_text()
    told = "\n\n".join(render(d, text) for d in found).replace(", ".join(sorted(targets())), "…")
    golden(FLEETS / f"{name}.txt", told + "\n")
    assert all(d.span is not None and d.help for d in found)
    if name.startswith("E"):
        assert {d.code for d in found} == {name[:4]}


def test_a_described_fleet(tmp_path: Path) -> None:
    fleet = read_fleet(write(tmp_path, DESK))
    assert fleet.described
    cpu, gpu, mac, mac_gpu = fleet.endpoints
    assert (cpu.memory, cpu.domain, cpu.threads) == (64 * 10**9, "desk", 8)
    assert (gpu.memory, gpu.domain) == (80 * 10**9, "desk-gpu")
    assert (mac.memory, mac.domain, mac_gpu.memory, mac_gpu.domain) == (1 << 34, "mac", 8 * 10**9, "mac")
    assert fleet.capacity("mac") == 1 << 34 and fleet.capacity("desk-gpu") == 80 * 10**9
    assert cpu.compute == {"f32": 9e11, "f64": 4.5e11} and cpu.bandwidth == 4e10
    assert cpu.rates is not None and cpu.rates.fma["f64"] == 2 * cpu.rates.fma["f32"] and not cpu.calibrated
    assert fleet.hosts[0].domains == ("rack-1", "room")


def test_links_are_found_from_the_nearest_on(tmp_path: Path) -> None:
    fleet = read_fleet(write(tmp_path, DESK))
    cpu, gpu, mac, mac_gpu = fleet.endpoints
    own = fleet.link(gpu, cpu)
    assert own is not None and (own.ends, own.rate, own.staging) == (("desk-cpu", "desk-gpu"), 25e9, 20e9)
    assert own.seconds(1e9) == pytest.approx(1e-5 + 0.04 + 0.05)
    between = fleet.link(mac_gpu, gpu)
    assert between is not None and between.rate == 1.25e9
    assert fleet.link(mac, mac_gpu) is LOOPBACK


def test_a_simple_fleet_says_names_and_speeds(tmp_path: Path) -> None:
    fleet = read_fleet(write(tmp_path, '[[endpoint]]\nname = "a"\nspeed = 2.5\n[[endpoint]]\nname = "b"\n'))
    assert [(e.name, e.target, e.speed) for e in fleet.endpoints] == [("a", None, Fraction(5, 2)), ("b", None, 1)]
    assert not fleet.described


def test_where_keys_are_written(tmp_path: Path) -> None:
    text = '''a = 1 # [b]
"two words".x = """
[[c]]
y = 2
"""
[[c]]
list = [
  "]",  # ]
  1,
]
z = { k = "}" }
[c.inner]
w = 1
[[c]]
z = 3
'''
    places = {
        key: (s.line, s.column) for key, s in read_toml(write(tmp_path, text), missing="", help="").places.items()
    }
    assert places == {
        ("a",): (1, 1),
        ("two words", "x"): (2, 1),
        ("c",): (6, 1),
        ("c", 0): (6, 1),
        ("c", 0, "list"): (7, 1),
        ("c", 0, "z"): (11, 1),
        ("c", 0, "inner"): (12, 1),
        ("c", 0, "inner", "w"): (13, 1),
        ("c", 1): (14, 1),
        ("c", 1, "z"): (15, 1),
    }


def test_sizes_are_shown_as_they_are_written() -> None:
    assert [shown_size(s) for s in (12, 1500, 64e9, 1.5e12)] == ["12 B", "1.5 kB", "64 GB", "1.5 TB"]
