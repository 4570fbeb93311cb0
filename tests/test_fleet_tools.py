"""`alphac fleet detect`, `alphac fleet show`, and what calibration leaves: without any of the hardware asked for."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from running import call
from test_fleet import DESK, write

from alphac import calibrate, calibration, detect, processor
from alphac.backends import registry, x86_64
from alphac.diagnostics import Diagnostics
from alphac.fleet import read_fleet
from alphac.generic import SYSTEMS, write_system
from alphac.ir.fleet import Link, Rates
from alphac.measured import Measured, read_measured, write_measured

RATES = Rates(
    step=1e-4, exchange=2e-5, launch=1e-7, fma={"f32": 2e-11}, flop=1e-11, bytes={"second": 7e-12}, fold=4e-11,
    draw=1e-8, counted={"vector": 2e-10, "tile": 3e-10, "launch": 1e-8, "turns": 0.0}, target="x86-64-v3",
)  # fmt: skip


def test_this_machine_is_a_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("fleet", "detect", "-o", "fleet.toml").code == 0
    fleet = read_fleet(tmp_path / "fleet.toml")
    assert fleet.described and fleet.endpoints[0].target == detect.host_target().name
    assert fleet.endpoints[0].threads >= 1 and fleet.hosts[0].memory > 0
    again = call("fleet", "detect", "-o", "fleet.toml")
    assert (again.code, again.err[:11]) == (1, "error[E401]")
    assert call("fleet", "detect").out == (tmp_path / "fleet.toml").read_text()


class FakeNvml(ModuleType):
    """NVIDIA's library on a machine with two GPUs, one of which no target knows."""

    class NVMLError(Exception):
        pass

    CAPABILITY = ((9, 0), (7, 5))

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def __getattr__(self, name: str) -> object:
        answers = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda n: n,
            "nvmlDeviceGetName": lambda n: b"Accelerator " + str(n).encode(),
            "nvmlDeviceGetUUID": lambda n: f"GPU-{n}",
            "nvmlDeviceGetMemoryInfo": lambda n: type("Memory", (), {"total": 80 * 10**9})(),
            "nvmlDeviceGetCudaComputeCapability": lambda n: self.CAPABILITY[n],
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]


def test_accelerators_are_asked_for_through_their_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    machine = detect.detect()
    assert [(d.model, d.target, d.identity) for d in machine.devices] == [
        ("Accelerator 0", "cuda-sm90", "GPU-0"),
        ("Accelerator 1", "", "GPU-1"),
    ]
    text = detect.fleet_text(machine)
    assert "# this compiler has no target for it" in text
    fleet = read_fleet(write(tmp_path, text))
    assert [(e.target, e.memory) for e in fleet.endpoints[1:]] == [("cuda-sm90", 80 * 10**9)]
    assert fleet.endpoints[1].domain == fleet.endpoints[1].name, "its memory is its own"


def test_amds_gpus_are_found_where_linux_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {  # a processor, an MI300X, one that no target knows
        "0": ("cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0", 1 << 40, 0),
        "1": ("simd_count 1216\ngfx_target_version 90402\nunique_id 255", 192 << 30, 1),
        "10": ("simd_count 8\ngfx_target_version 100306\n", 8 << 30, 2),
    }
    for number, (properties, size, kind) in nodes.items():
        bank = tmp_path / "nodes" / number / "mem_banks" / "0"
        bank.mkdir(parents=True)
        (bank / "properties").write_text(f"heap_type {kind}\nsize_in_bytes {size}\nflags 0\n")
        (bank.parents[1] / "properties").write_text(properties)
    monkeypatch.setattr(detect, "KFD", tmp_path / "nodes")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    machine = detect.detect()
    assert machine.devices == (
        detect.Device("amd0", "AMD gfx942", 192 << 30, "rocm-gfx942", "GPU-00000000000000ff"),
        detect.Device("amd1", "AMD gfx1036", 8 << 30, ""),
    )
    fleet = read_fleet(write(tmp_path, detect.fleet_text(machine)))
    assert [e.target for e in fleet.endpoints[1:]] == ["rocm-gfx942"]


class FakeOpenCl(ModuleType):
    """pyopencl on a machine with a processor, a GPU that NVML has found too, one that it has not, and one that flushes
    subnormal numbers."""

    class LogicError(Exception):
        pass

    class device_type:  # noqa: N801
        CPU, GPU = 2, 4

    class device_fp_config:  # noqa: N801
        DENORM, INF_NAN, ROUND_TO_NEAREST, FMA, CORRECTLY_ROUNDED_DIVIDE_SQRT = 1, 2, 4, 32, 128

    def get_platforms(self) -> list[ModuleType]:
        return [self]

    def get_devices(self) -> list[SimpleNamespace]:
        def made(name: str, vendor: str, kind: int, single: int, shared: bool) -> SimpleNamespace:
            return SimpleNamespace(
                name=name, vendor=vendor, type=kind, single_fp_config=single, double_fp_config=63, address_bits=64,
                host_unified_memory=shared, global_mem_size=16 * 10**9,
            )  # fmt: skip

        return [
            made("Processor", "Maker of processors", 2, 191, True),
            made("Accelerator 0", "NVIDIA Corporation", 4, 191, False),
            made("Arc", "Intel(R) Corporation", 4, 191, False),
            made("Small", "Intel(R) Corporation", 4, 190, True),
        ]


def test_opencl_finds_what_no_makers_library_has_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    monkeypatch.setitem(sys.modules, "pyopencl", FakeOpenCl("pyopencl"))
    machine = detect.detect()
    assert [(d.name, d.model, d.target, d.identity) for d in machine.devices[2:]] == [
        ("opencl0", "Arc", "opencl", ""),
        ("opencl1", "Small", "", "lacks subnormals"),
    ]
    fleet = read_fleet(write(tmp_path, detect.fleet_text(machine)))
    assert [(e.target, e.memory) for e in fleet.endpoints[2:]] == [("opencl", 16 * 10**9)]


def test_what_could_not_be_asked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    text = detect.fleet_text(detect.detect())
    assert "# could not be asked: NVIDIA GPUs: install nvidia-ml-py" in text


def test_a_unified_machine_declares_its_memory_once(tmp_path: Path) -> None:
    machine = replace(
        detect.detect(), unified=True, memory=64 * 10**9, devices=(detect.Device("gpu", "GPU", 0, "x86-64-v3"),)
    )
    fleet = read_fleet(write(tmp_path, detect.fleet_text(machine)))
    assert fleet.hosts[0].unified and {e.domain for e in fleet.endpoints} == {fleet.hosts[0].name}


APPLE = {
    "machdep.cpu.brand_string": "Apple M1",
    "hw.perflevel0.physicalcpu": "4",
    "hw.memsize": "17179869184",
    "hw.perflevel0.l1dcachesize": "131072",
    "hw.perflevel0.l2cachesize": "12582912",
}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """`elsewhere(system, machine)`: be on such a machine, as far as Python is asked."""
    cached = (registry.targets_here, registry.host_target, x86_64.host_features)

    def go(system: str, machine: str) -> None:
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        for function in cached:
            function.cache_clear()

    yield go
    for function in cached:
        function.cache_clear()


def test_an_apple_processor_is_asked_through_sysctl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[str, str], None]
) -> None:
    elsewhere("Darwin", "arm64")
    monkeypatch.setattr(processor, "_sysctl", lambda key: APPLE.get(key, ""))
    machine = detect.detect()
    assert (machine.processor, machine.cores, machine.memory) == ("Apple M1", 4, 16 << 30)
    assert machine.caches == (("L1", 128 << 10), ("L2", 12 << 20))
    assert (machine.target, machine.unified) == ("aarch64-macos", True)
    fleet = read_fleet(write(tmp_path, detect.fleet_text(machine)))
    assert (fleet.endpoints[0].target, fleet.endpoints[0].threads) == ("aarch64-macos", 4)


def test_a_linux_aarch64_is_known_by_its_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[str, str], None]
) -> None:
    elsewhere("Linux", "aarch64")
    monkeypatch.setattr(processor, "ROOT", tmp_path)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    machine = detect.detect()
    assert (machine.processor, machine.target) == ("aarch64, implementer 0x41, part 0xd0c", "aarch64")


def test_a_fleet_is_shown(tmp_path: Path) -> None:
    text = call("fleet", "show", write(tmp_path, DESK)).out
    for word in ("desk", "in rack-1, room", "unified", "desk-gpu", "f32 900 GFLOP/s", "80 GB own", "25 GB/s", "10 µs"):
        assert word in text
    simple = call("fleet", "show", write(tmp_path, '[[endpoint]]\nname = "a"\nspeed = 2\n')).out
    assert "speed 2" in simple


# ---------------------------------------------------------------------- calibration
def test_measurements_are_kept_beside_the_fleet_and_win(tmp_path: Path) -> None:
    path = write(tmp_path, DESK)
    loop = Link(("desk", "desk"), 1e9, 5e-6)
    write_measured(path, Measured({"desk-cpu": RATES}, {"desk": loop}, {"desk-cpu": {"threads": 8}}))
    fleet = read_fleet(path)
    cpu = fleet.endpoint("desk-cpu")
    assert cpu.rates == RATES and cpu.calibrated and not fleet.endpoint("mac-cpu").calibrated
    assert fleet.link(cpu, replace(cpu, name="twin")) == loop
    assert read_measured(path).notes == {"desk-cpu": {"threads": 8}}
    assert "calibrated" in call("fleet", "show", path).out


@pytest.mark.parametrize("content", ["", "{}", '{"format": 2}', '{"format": 1, "rates": {"a": {}}}'])
def test_measurements_that_are_none(tmp_path: Path, content: str) -> None:
    path = write(tmp_path, DESK)
    path.with_suffix(".measured.json").write_text(content)
    with pytest.raises(Diagnostics, match=r"error\[E207\]: .* holds no measurements"):
        read_fleet(path)


def test_rates_are_found_from_times() -> None:
    """Kernels that take exactly what some rates say give these rates back."""
    random = np.random.default_rng(1)
    systems: list[list[calibrate.Timed]] = []
    for _ in range(6):
        timed: list[calibrate.Timed] = []
        for _ in range(10):
            units = {kind: float(x) for kind, x in zip(RATES.counted, 10 ** random.uniform(3, 7, 4), strict=True)}
            timed.append((units, sum(n * RATES.counted[kind] for kind, n in units.items())))
        systems.append(timed)
    found = calibrate.fit(systems, registry.target("x86-64-v3"))
    assert found.counted == pytest.approx(RATES.counted, rel=1e-3, abs=1e-14)
    assert found.fma["f32"] == pytest.approx(3e-10 / 8, rel=1e-3)
    assert calibrate.error(systems, found) < 1e-3


def test_generic_systems_compile(tmp_path: Path) -> None:
    from alphac import pipeline

    for number, system in enumerate(SYSTEMS):
        source = write_system(system, tmp_path / str(number))
        assert pipeline.check(source, overrides={}).startswith("calibration: ")


def test_a_generic_system_is_timed_and_counted(tmp_path: Path) -> None:
    """What code was counted to do and what clocks around it say is of the same kernels; nobody judges how long."""
    source = write_system(SYSTEMS[0], tmp_path / "system")
    timed = calibrate.time_kernels(source, detect.host_target().name, 1)
    assert len(timed) > 3
    for units, seconds in timed:
        assert seconds > 0 and units and all(n >= 0 for n in units.values())


def test_whom_to_calibrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = read_fleet(write(tmp_path, DESK))
    monkeypatch.setattr("platform.node", lambda: "desk.example.org")
    monkeypatch.setattr(calibration, "target", lambda name: calibration.host_target())
    assert [e.name for e in calibration.mine(fleet, ())] == ["desk-cpu", "desk-gpu"]
    assert [e.name for e in calibration.mine(fleet, ("mac-cpu",))] == ["mac-cpu"]
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    for names, message in (((), "no host of this fleet is called `elsewhere`"), (("x",), "no endpoint `x`")):
        with pytest.raises(Diagnostics, match=message):
            calibration.mine(fleet, names)


def test_a_gpu_is_not_calibrated_as_a_processor(tmp_path: Path) -> None:
    text = DESK.replace('name = "desk-gpu"', 'name = "desk-gpu"\ntarget = "cuda-sm90"')
    with pytest.raises(Diagnostics, match="is for cuda-sm90: GPUs are not calibrated yet"):
        calibration.mine(read_fleet(write(tmp_path, text)), ("desk-gpu",))
