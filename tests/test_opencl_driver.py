"""What the OpenCL driver does on PoCL: memory, launches, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pocl import runs

from alphac.runtime.devices.gpu import Launch
from alphac.runtime.devices.opencl import OpenClDriver, lacks
from alphac.runtime.errors import KernelFailed, OutOfMemory

NEEDS = ("fp64", "cpu")
TEXT = """
__kernel void twice(__global uchar* memory, const long p0, const long more) {
    __local float kept[64];
    __global float* x = (__global float*)(memory + p0);
    kept[get_local_id(0)] = x[get_local_id(0)];
    x[get_local_id(0)] = 2 * kept[get_local_id(0)] + get_group_id(1) * more;
}
"""


@runs
def test_memory_and_launches() -> None:
    driver = OpenClDriver(TEXT.encode(), "opencl-cpu", NEEDS)
    first, second = driver.allocate(16), driver.allocate(1000)
    x = np.arange(8, dtype=np.float32)[::2]
    driver.write(second, x)
    found = np.ones(4, np.float32)
    driver.read(first, found)
    assert not found.any(), "memory starts as zeros"
    driver.read(second, found)
    assert found.tolist() == [0, 2, 4, 6]
    launch = Launch(driver.function("twice"), 1, 1, 4, (second, 0))
    again = driver.record((launch, launch))
    third = driver.allocate(1 << 16)
    driver.write(third, np.ascontiguousarray(x))
    again()
    again()
    driver.read(second, found)
    assert found.tolist() == [0, 32, 64, 96], "larger memory holds what the smaller one did"
    driver.read(third, found)
    assert found.tolist() == [0, 2, 4, 6]
    said = driver.describe()
    assert said["runs_on"] == "PoCL on a CPU" and "PoCL" in str(said["opencl"])
    driver.close()
    driver.close()


@runs
def test_what_is_refused() -> None:
    with pytest.raises(KernelFailed, match="does not take the kernels"):
        OpenClDriver(TEXT.replace("float*", "flaot*").encode(), "opencl-cpu", NEEDS)
    driver = OpenClDriver(TEXT.encode(), "opencl-cpu", NEEDS)
    with pytest.raises(KernelFailed, match="no kernel `thrice`"):
        driver.function("thrice")
    with pytest.raises(OutOfMemory):
        driver.allocate(1 << 60)
        driver.write(0, np.zeros(4, np.float32))
    driver.close()


@runs
def test_a_block_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cl: Any = pytest.importorskip("pyopencl")
    driver = OpenClDriver(TEXT.encode(), "opencl-cpu", NEEDS)
    info = cl.kernel_work_group_info
    for sizes, said in (
        (
            {info.LOCAL_MEM_SIZE: 1 << 40, info.WORK_GROUP_SIZE: 256},
            r"bytes of local memory, `twice` needs 1099511627776",
        ),
        ({info.LOCAL_MEM_SIZE: 0, info.WORK_GROUP_SIZE: 128}, r"has 128 threads to a block, `twice` needs 256"),
    ):
        kernel = SimpleNamespace(get_work_group_info=lambda what, device, sizes=sizes: sizes[what])
        monkeypatch.setattr(cl, "Kernel", lambda program, symbol, kernel=kernel: kernel)
        with pytest.raises(KernelFailed, match=said):
            driver.function("twice")
    driver.close()


@runs
def test_a_device_that_is_not_exact_is_told_what_it_lacks() -> None:
    cl: Any = pytest.importorskip("pyopencl")
    exact = SimpleNamespace(single_fp_config=191, double_fp_config=63, address_bits=64)
    assert lacks(cl, exact, f64=True) == []
    flushes = SimpleNamespace(single_fp_config=190, double_fp_config=0, address_bits=32)
    assert lacks(cl, flushes, f64=False) == ["subnormals", "64-bit addresses"]
    approximate = SimpleNamespace(single_fp_config=63, double_fp_config=0, address_bits=64)
    assert lacks(cl, approximate, f64=True)[0] == "correctly rounded division"
    assert "fma in f64" in lacks(cl, approximate, f64=True)
