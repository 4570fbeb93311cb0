"""An aarch64 Linux under emulation: Debian's Python, PyPI's wheels, qemu-user. All of it lies in the user's cache,
where the first test that needs it puts it; nothing is installed into the system, and root is not needed.

What cannot be had is a reason to skip: no Debian, no network.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from functools import cache
from pathlib import Path

PROJECT, HERE = Path(__file__).parents[1], Path(__file__).parent
DEBIAN = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
NEEDED = ("numpy", "llvmlite", "safetensors", "numba", "lark", "rich")  # to run, and to compile
WHEELS = tuple(f"{name}=={importlib.metadata.version(name)}" for name in NEEDED)
GLIBC = (17, 26, 27, 28, 31, 34)  # glibc 2.x that wheels are made for
RECIPE = 1  # counts what `_install` makes of them
EMULATOR = "qemu-aarch64-static"
KEPT = 30 * 24 * 3600  # seconds after its last use that an installation is kept
PATIENCE = 600.0  # seconds after which what installs or runs is taken for hung


class Unavailable(Exception):
    """There is no emulation here, and why."""


def emulated_python() -> tuple[str, ...]:
    """The command that starts an aarch64 Python, which finds alphac and the tests' modules. Raises Unavailable."""
    if platform.system() != "Linux" or platform.machine() == "aarch64":
        raise Unavailable("that is for Linux on another processor")
    home = _installed()
    paths = os.pathsep.join(map(str, (home / "wheels", PROJECT, HERE)))
    return ("env", f"PYTHONPATH={paths}", str(home / EMULATOR), "-L", str(home / "root"), str(_python(home)))


def _python(home: Path) -> Path:
    (found,) = (home / "root/usr/bin").glob("python3.*[0-9]")
    return found


# ---------------------------------------------------------------------- installing
def _installed() -> Path:
    """The folder with root/, wheels/ and the emulator, made once: whoever comes meanwhile waits."""
    recipe = hashlib.sha256(f"{RECIPE} {DEBIAN} {WHEELS}".encode()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "alphac-tests"
    home = caches / f"aarch64-{recipe}"
    try:
        caches.mkdir(parents=True, exist_ok=True)
        with (caches / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not home.exists():
                work = Path(tempfile.mkdtemp(prefix=".aarch64-", dir=caches))
                try:
                    _install(work)
                    work.rename(home)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
                for other in caches.glob("aarch64-*"):  # of other versions
                    if other.stat().st_mtime < time.time() - KEPT:
                        shutil.rmtree(other, ignore_errors=True)
            os.utime(home)
    except OSError as error:
        raise Unavailable(f"{caches}: {error.strerror or error}") from None
    return home


def _install(home: Path) -> None:
    root = home / "root"
    for package in _debian_packages(home / "apt"):
        if package.name.startswith("qemu-user-static"):
            _do("dpkg-deb", "-x", package, home / "qemu")
            (home / "qemu/usr/bin" / EMULATOR).rename(home / EMULATOR)
            shutil.rmtree(home / "qemu")  # emulators of other processors
        elif not package.name.endswith(f"_{_architecture()}.deb"):
            _do("dpkg-deb", "-x", package, root)
    if not (root / "lib").exists():
        (root / "lib").symlink_to("usr/lib")
    python = _python(home)
    _wheels(home, python.name.removeprefix("python"))
    shutil.rmtree(home / "apt")
    wheels = f"PYTHONPATH={home / 'wheels'}"
    _do("env", wheels, home / EMULATOR, "-L", root, python, "-c", "import llvmlite.binding, numpy, safetensors")


def _debian_packages(state: Path) -> list[Path]:
    """Fetch Python for arm64, the emulator for this machine, and what they need, with an apt that knows of nothing that
    is installed."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True)
    (state / "status").touch()
    settings = {
        "Dir::State": state,
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "APT::Install-Recommends": "false",
        "Debug::NoLocking": "true",
    }
    options = [f"-o{name}={value}" for name, value in settings.items()]
    options += [f"-oAPT::Architectures::={name}" for name in (_architecture(), "arm64")]
    wanted = [f"{name}:arm64" for name in DEBIAN] + [f"qemu-user-static:{_architecture()}"]
    _do("apt-get", *options, "-qq", "update")
    _do("apt-get", *options, "-qq", "-y", "--download-only", "install", *wanted)
    return sorted((state / "cache/archives").glob("*.deb"))


def _wheels(home: Path, version: str) -> None:
    platforms = [f"--platform=manylinux_2_{glibc}_aarch64" for glibc in GLIBC]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    _do(sys.executable, "-m", "pip", "download", *options, *platforms, "-d", home / "apt", *WHEELS)
    for wheel in (home / "apt").glob("*.whl"):
        with zipfile.ZipFile(wheel) as content:
            content.extractall(home / "wheels")


@cache
def _architecture() -> str:
    """This machine's, in Debian's words."""
    return _do("dpkg", "--print-architecture").strip()


def _do(*command: object) -> str:
    """Run a command. Raises Unavailable with what it says."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except FileNotFoundError:
        raise Unavailable(f"there is no {words[0]}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{words[0]}` took more than {PATIENCE:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise Unavailable(f"`{words[0]}`: {said[-1]}")
    return done.stdout
