"""Peers: other frameworks on the same work. A peer's file stands beside the system's source, `NAME_PEER.py`.

It holds the mathematics alone: `loss(parameters, batch)`, how it is optimized, and, where its layouts are not alphac's,
`parameters(initial)` and `batch(columns)`. How the framework trains with it, in several variants, is in `torch_peer.py`
and `jax_peer.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
PARAMETERS, BATCHES = "parameters.npz", "batches.npz"  # what peers start from, in the contest's directory


@dataclass(frozen=True)
class Framework:
    """A peer: the module that it needs, the extra that installs it, and its variants."""

    module: str
    extra: str
    variants: tuple[str, ...]


FRAMEWORKS = {
    "torch": Framework("torch", "peers", ("eager", "fused", "compile")),
    "jax": Framework("jax", "peers", ("jit", "scan")),
}
CHANNELS_LAST = "channels-last"  # one more variant of torch, for files that say CHANNELS_LAST


def peer_file(source: Path, peer: str) -> Path:
    """Where the peer of a source stands."""
    return source.with_name(f"{source.stem}_{peer}.py")


def variants(peer: str, file: Path) -> tuple[str, ...]:
    """The variants of a peer's file; it is read, not run."""
    names = FRAMEWORKS[peer].variants
    if any(line.startswith("CHANNELS_LAST = True") for line in file.read_text(encoding="utf-8").splitlines()):
        names = (*names, CHANNELS_LAST)
    return names


def installed(peer: str) -> bool:
    return importlib.util.find_spec(FRAMEWORKS[peer].module) is not None


def load(file: Path) -> ModuleType:
    """A peer's file as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start_values(module: ModuleType, directory: Path) -> Arrays:
    """alphac's first values in the peer's own layout."""
    with np.load(directory / PARAMETERS) as file:
        return _converted(module, "parameters", dict(file))


def batches(module: ModuleType, directory: Path) -> Iterable[Arrays]:
    """The batches in the peer's own layout, contiguous, one after the other."""
    with np.load(directory / BATCHES) as file:
        columns = dict(file)
    for number in range(len(next(iter(columns.values())))):
        batch = _converted(module, "batch", {name: array[number] for name, array in columns.items()})
        yield {name: np.ascontiguousarray(array) for name, array in batch.items()}


def _converted(module: ModuleType, name: str, arrays: Arrays) -> Arrays:
    convert = cast("Callable[[Arrays], Arrays] | None", getattr(module, name, None))
    return convert(arrays) if convert is not None else arrays
