"""For tests: LLVM's linker, which rocm targets need."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from alphac.backends import rocm


@cache
def need_lld() -> None:
    """Install lld where that can be done; else skip."""
    if rocm.find_lld():
        return
    if os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get"):
        with Path(tempfile.gettempdir(), "alphac-tests-lld.lock").open("w") as lock:  # tests run side by side
            fcntl.flock(lock, fcntl.LOCK_EX)
            rocm.find_lld.cache_clear()
            if not rocm.find_lld():
                _install()
        rocm.find_lld.cache_clear()
    if not rocm.find_lld():
        pytest.skip(f"ld.lld {rocm.LLD} or later is not here, and apt-get cannot install it")


def _install() -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "--yes", f"lld-{rocm.LLD}"]):
        subprocess.run(command, capture_output=True, check=False, env=environment)
