"""The calls of HIP, answered by a library that stands for ROCm's (hip_double.c): what is packed where, what is said
when a call fails, and a whole system on it, whose kernels are simulated."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated
from session import Session

from alphac.backends import registry
from alphac.backends.registry import host_target
from alphac.pipeline import Plan, compile_file
from alphac.runtime.bundle import read_bundle
from alphac.runtime.devices import rocm
from alphac.runtime.devices.gpu import Launch
from alphac.runtime.devices.rocm import RocmDriver
from alphac.runtime.errors import KernelFailed, OutOfMemory

SOURCE = Path(__file__).with_name("hip_double.c")
EXAMPLE = Path(__file__).parents[1] / "examples" / "digits_mlp" / "digits_mlp.alpha"
IMAGE = b"\x7fELF and more"
_P, _U = ctypes.c_void_p, ctypes.c_uint
HOOKS = (
    ctypes.CFUNCTYPE(_P, _P),
    ctypes.CFUNCTYPE(_P, ctypes.c_char_p),
    ctypes.CFUNCTYPE(ctypes.c_int, _P),
    ctypes.CFUNCTYPE(None, _P, _U, _U, _U, ctypes.POINTER(ctypes.c_int64)),
)


class Double:
    """The library, and what was launched."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.double_calls.restype = ctypes.c_char_p
        self.library.double_set(b"gfx942:sramecc+:xnack-", 1)
        self.launched: list[tuple[Any, ...]] = []
        self.hooks(lambda image: None, len, lambda function: 3, self._launch)

    def hooks(self, *functions: Callable[..., Any]) -> None:
        """What loads an image, finds a kernel, knows how many arguments it has, and runs it."""
        self.kept = [kind(function) for kind, function in zip(HOOKS, functions, strict=True)]
        self.library.double_hooks(*(ctypes.cast(hook, _P) for hook in self.kept))

    def _launch(self, function: int, blocks: int, tiles: int, threads: int, values: Any) -> None:
        self.launched.append((function, blocks, tiles, threads, values[:3]))

    def calls(self) -> list[str]:
        """The names of the calls since the last time that they were asked for."""
        found = self.library.double_calls().decode().split()
        self.library.double_forget()
        return found


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here to build the library with")
    path = tmp_path_factory.mktemp("hip") / "libamdhip64.so"
    subprocess.run([compiler, "-Wall", "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)], check=True)
    return path


@pytest.fixture
def double(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    monkeypatch.setattr(rocm, "LIBRARIES", ("libnothing.so", str(built)))
    rocm.load_library.cache_clear()
    made = Double(built)
    made.calls()
    yield made
    rocm.load_library.cache_clear()
    assert made.library.double_live() == 0, "all is given back"


def test_memory_and_launches(double: Double) -> None:
    driver = RocmDriver(IMAGE, "rocm-gfx942", ("gfx942",))
    assert double.calls() == [
        "hipInit",
        "hipSetDevice",
        "hipGetDevicePropertiesR0600",
        "hipStreamCreate",
        "hipModuleLoadData",
    ]
    place = driver.allocate(16)
    found = np.ones(4, np.float32)
    driver.read(place, found)
    assert not found.any(), "memory starts as zeros"
    driver.write(place, np.arange(8, dtype=np.float32)[::2])
    driver.read(place, found)
    assert found.tolist() == [0, 2, 4, 6]
    launch = Launch(driver.function("kern"), 7, 1, 256, (place, -1, 3))
    driver.launch(launch)
    one = (4, 7, 1, 256, [place, -1, 3])
    assert double.launched == [one]
    again = driver.record((launch, launch))
    assert double.launched == [one], "recorded, not started"
    again()
    again()
    assert double.launched == [one] * 5
    driver.launch(Launch(4, 7, 65537, 256, (place, 0, 64)))
    assert [(tiles, given) for _, _, tiles, _, given in double.launched[5:]] == [
        (65535, [place, 0, 64]),
        (2, [place, 65535, 64]),
    ]
    assert driver.describe() == {
        "gpu": "AMD Double",
        "architecture": "gfx942",
        "multiprocessors": 304,
        "hip": "6.3",
    }
    double.calls()
    driver.close()
    driver.close()
    assert double.calls() == ["hipFree", "hipGraphExecDestroy", "hipModuleUnload", "hipStreamDestroy"]


def test_what_a_gpu_refuses(double: Double) -> None:
    with pytest.raises(KernelFailed, match="rocm-gfx1100 needs gfx1100, this GPU is gfx942"):
        RocmDriver(IMAGE, "rocm-gfx1100", ("gfx1100",))
    driver = RocmDriver(b"", "rocm-gfx942", ("gfx942",))
    with pytest.raises(OutOfMemory, match="the GPU has no memory left"):
        driver.allocate(1 << 50)
    with pytest.raises(KernelFailed, match="hipModuleGetFunction: hipErrorNotFound"):
        driver.function("kern")
    driver.close()
    with pytest.raises(KernelFailed, match="hipModuleLoadData: hipErrorNoBinaryForGpu"):
        RocmDriver(b"bad", "rocm-gfx942", ("gfx942",))
    double.library.double_set(b"", 0)
    with pytest.raises(KernelFailed, match="rocm-gfx942: no AMD GPU can be used here: hipInit: hipErrorNoDevice"):
        RocmDriver(IMAGE, "rocm-gfx942", ("gfx942",))


def test_without_rocm_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocm, "LIBRARIES", ("libnothing.so",))
    rocm.load_library.cache_clear()
    with pytest.raises(KernelFailed, match=r"rocm-gfx942 needs ROCm's libamdhip64.*\n.*install ROCm 6"):
        RocmDriver(IMAGE, "rocm-gfx942", ("gfx942",))
    rocm.load_library.cache_clear()


# ---------------------------------------------------------------------- a whole system
class Simulation:
    """Runs what the library is asked to launch. Kernels are those of a bundle's object."""

    def __init__(self, double: Double, code: bytes) -> None:
        header, _, self.kernels = code.partition(b"\n")
        self.counts: dict[str, int] = {}
        self._count(json.loads(header)["segments"])
        self.arguments: dict[int, int] = {}
        self.simulator: simulated.Simulator | None = None
        double.hooks(self.load, self.function, lambda function: self.arguments[function], self.launch)

    def _count(self, found: Any) -> None:
        if isinstance(found, dict):
            if "launch" in found:
                tiles = 2 if found["tiles"] else 0
                self.counts[found["launch"]] = len(found["buffers"]) + found["loops"] + 3 + tiles
            found = list(found.values())
        for part in found if isinstance(found, list) else []:
            self._count(part)

    def load(self, image: int) -> None:
        assert ctypes.string_at(image, len(self.kernels)) == self.kernels
        self.simulator = simulated.Simulator(self.kernels)

    def function(self, name: bytes) -> int:
        assert self.simulator is not None
        found = self.simulator.function(name.decode())
        self.arguments[found] = self.counts[name.decode()]
        return found

    def launch(self, function: int, blocks: int, tiles: int, threads: int, values: Any) -> None:
        assert self.simulator is not None
        self.simulator.launch(Launch(function, blocks, tiles, threads, tuple(values[: self.arguments[function]])))


@pytest.mark.skipif(not simulated.can_simulate(), reason="the simulator switches stacks of x86-64 Linux")
def test_a_system_trains_with_the_bits_of_the_cpu(
    double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replace(simulated.simulated(), name="rocm-simulated", device="rocm", needs=("gfx942",))
    monkeypatch.setitem(registry._scanned(), made.name, (made, "rocm"))

    def compiled(name: str) -> Path:
        return compile_file(EXAMPLE, out=tmp_path / name, plan=Plan((Fraction(1),), (name,))).path

    path = compiled(made.name)
    bundle = read_bundle(path)
    simulation = Simulation(double, bundle.read(bundle.class_of(0).object))
    with Session(compiled(host_target().name)) as cpu, Session(path) as gpu:
        assert simulation.simulator is not None
        assert gpu.train(3) == cpu.train(3)
        assert "hipGraphLaunch" in double.calls()
        found = gpu.states()
        differing = [name for name, state in cpu.states().items() if found[name].tobytes() != state.tobytes()]
        assert not differing, f"these differ: {', '.join(differing)}"
