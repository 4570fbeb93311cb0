"""Using what was learned, in this process: `evaluate` and `predict`, one role over all shards."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from alphac.runtime.arena import STORAGE
from alphac.runtime.bundle import Bundle, read_bundle
from alphac.runtime.checkpoint import HEAD, find_checkpoint, load_states, restore
from alphac.runtime.columns import open_arrays
from alphac.runtime.errors import DataRefused, InputRefused
from alphac.runtime.executor import Executor, Program
from alphac.runtime.groups import Alone
from alphac.runtime.record import PARAMETERS
from alphac.runtime.records import BufferRecord, PortRecord
from alphac.runtime.training import Machine, open_data

Array = npt.NDArray[Any]


def evaluate(bundle_path: Path | str, parameters: Path | str, *, threads: int = 1) -> dict[str, float]:
    """Every `evaluate` of a bundle, by name, with the states at `parameters`: a parameters.safetensors, a checkpoint
    or a run directory. Raises RuntimeFaults."""
    bundle = read_bundle(bundle_path)
    evaluations = bundle.manifest.evaluations
    able = {e.name: _able(bundle, f"evaluate {e.name}", f"evaluate.{e.name}", f"finish.{e.name}") for e in evaluations}
    data, values = open_data(bundle), dict[str, float]()
    for number in dict.fromkeys(able.values()):
        with _alone(bundle, number, threads) as executor:
            _load(bundle, Path(parameters), executor)
            machine = Machine(bundle, executor, data, Alone())
            values |= {e.name: machine.evaluate(e) for e in evaluations if able[e.name] == number}
    return {name: values[name] for name in able}


def predict(
    bundle_path: Path | str,
    region: str | None,
    inputs: Path | Mapping[str, Array],
    parameters: Path | str,
    *,
    out: Path | None = None,
    threads: int = 1,
) -> dict[str, tuple[int, ...]]:
    """Run a region on `inputs` (npz, safetensors, or arrays by name) and write its outputs to `out`, an npz.

    Returns the outputs' shapes by name. Raises RuntimeFaults."""
    outputs = predictions(bundle_path, region, inputs, parameters, threads=threads)
    if out is not None:
        try:
            with out.open("wb") as stream:
                np.savez(stream, **{name or "output": array for name, array in outputs.items()})  # pyright: ignore
        except OSError as error:
            raise InputRefused(f"{out} cannot be written: {error.strerror or error}") from None
    return {name: array.shape for name, array in outputs.items()}


def predictions(
    bundle_path: Path | str,
    region: str | None,
    inputs: Path | Mapping[str, Array],
    parameters: Path | str,
    *,
    threads: int = 1,
) -> dict[str, Array]:
    """A region's outputs by name; bf16 ones as their bits. Raises RuntimeFaults."""
    bundle = read_bundle(bundle_path)
    name = _region(bundle, region)
    arrays = dict(inputs) if not isinstance(inputs, Path) else _read(inputs)
    with _alone(bundle, _able(bundle, name.replace(".", " "), name), threads) as executor:
        _load(bundle, Path(parameters), executor)
        return _Prediction(bundle, executor, executor.programs[name], arrays).run()


def _able(bundle: Bundle, what: str, *programs: str) -> int:
    """The class that runs some programs alone: it owns all shards of their strands. Raises InputRefused."""
    manifest = bundle.manifest
    buffers = [buffer for name in programs for buffer in manifest.programs[name].buffers]
    strands = {buffer.strand for buffer in buffers if buffer.grows or buffer.role == "nodes"}
    for number in (manifest.solo, *manifest.apart):
        if number >= 0 and all(bundle.class_of(number).owned[strand] for strand in strands):
            return number
    targets = " and ".join(", ".join(manifest.strands[strand].targets) for strand in sorted(strands))
    raise InputRefused(
        f"`{what}` has parts for {targets}, and no role of {bundle.path} runs them all",
        help="compile for a role whose target has all of them; a run ends with every evaluation, by all roles",
    )


@contextmanager
def _alone(bundle: Bundle, number: int, threads: int) -> Generator[Executor]:
    """An executor of a class that owns all shards of what it runs."""
    executor = Executor(bundle, bundle.class_of(number), 0, threads)
    try:
        yield executor
    finally:
        executor.close()


def _load(bundle: Bundle, path: Path, executor: Executor) -> None:
    if path.is_dir() and (path / PARAMETERS).is_file() and not (path / HEAD).is_file():
        path = path / PARAMETERS
    if path.is_dir():
        restore(find_checkpoint(path, bundle.manifest), bundle.manifest, executor.states)
        return
    for name, array in load_states(path, bundle.manifest).items():
        executor.states[name][...] = array


def _region(bundle: Bundle, region: str | None) -> str:
    known = [name.removeprefix("region.") for name in bundle.manifest.programs if name.startswith("region.")]
    if region is None and len(known) == 1:
        return f"region.{known[0]}"
    if region not in known:
        said = "say which region" if region is None else f"there is no region `{region}`"
        raise InputRefused(said, help=f"one of {', '.join(known)}" if known else "this bundle has no region")
    return f"region.{region}"


def _read(path: Path) -> dict[str, Array]:
    try:
        return open_arrays(path)
    except DataRefused as fault:
        raise InputRefused(fault.message) from None


class _Prediction:
    """One region over any number of examples, batch by batch; the last batch is filled up with zeros."""

    def __init__(self, bundle: Bundle, executor: Executor, program: Program, arrays: dict[str, Array]) -> None:
        self.executor, self.program, self.batch = executor, program, bundle.manifest.batch
        ports = [port for port, _ in program.arguments("input")]
        if odd := {p.name for p in ports} ^ set(arrays):
            name = min(odd)
            raise InputRefused(f"inputs {'have the unknown' if name in arrays else 'lack'} `{name}`")
        self.inputs = {port.buffer: self._input(port, arrays[port.name]) for port in ports}
        counts = {len(a) for b, a in self.inputs.items() if self._record(b).grows}
        if len(counts) > 1:
            raise InputRefused(f"inputs have {', '.join(map(str, sorted(counts)))} examples: they must have as many")
        self.count = counts.pop() if counts else self.batch
        if not self.count and self.batch:
            raise InputRefused("inputs have no examples")

    def _record(self, buffer: int) -> BufferRecord:
        return self.program.record.buffers[buffer]

    def _input(self, port: PortRecord, array: Array) -> Array:
        """An input in its buffer's dtype and layout."""
        record = self._record(port.buffer)
        axis = int(port.attributes.get("axis", 0))
        if record.grows and array.ndim > axis:
            array = np.moveaxis(array, axis, 0)
        expected = record.shape[1:] if record.grows else record.shape
        found = array.shape[1:] if record.grows else array.shape
        if found != expected or array.ndim != len(record.shape):
            raise InputRefused(f"input `{port.name}` has shape {array.shape}, an example of it {expected}")
        storage = STORAGE[record.dtype]
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise InputRefused(f"input `{port.name}` has a NaN", help="leave out or mend the examples that have one")
        if array.dtype == storage or (record.dtype == "bf16" and array.dtype.kind == "u" and array.dtype.itemsize == 2):
            return array
        if record.dtype == "bf16" or not np.can_cast(array.dtype, storage, "same_kind"):
            raise InputRefused(f"input `{port.name}` is {array.dtype}, which does not go into {record.dtype}")
        return array.astype(storage)

    def run(self) -> dict[str, Array]:
        ports = [port for port, _ in self.program.results("output")]
        pieces: dict[str, list[Array]] = {port.name: [] for port in ports}
        for _, view in self.program.arguments("step"):
            view[...] = 0
        size = self.batch or 1
        whole = self.count % size == 0 and self.count == size
        for begin in range(0, self.count, size) if self.batch else (0,):
            count = min(size, self.count - begin)
            self._fill(begin, count)
            self.executor.run(self.program.name, None if self.executor.whole else Alone().exchange)
            for port in ports:
                value = self.program.value(port.buffer)
                if self._record(port.buffer).grows:
                    value = np.moveaxis(value[:count], 0, int(port.attributes.get("axis", 0)))
                elif self.batch and not whole and self._reads_batch():
                    raise InputRefused(
                        f"output `{port.name}` is of a whole batch", help=f"give exactly {self.batch} examples"
                    )
                pieces[port.name].append(np.array(value))
        return {port.name: self._joined(port, pieces[port.name]) for port in ports}

    def _fill(self, begin: int, count: int) -> None:
        for port, view in self.program.arguments("input"):
            array = self.inputs[port.buffer]
            if self._record(port.buffer).grows:
                view[:count] = array[begin : begin + count]
                view[count:] = 0
            else:
                view[...] = array
        for _, view in self.program.arguments("valid"):
            view[...] = count

    def _reads_batch(self) -> bool:
        return any(self._record(b).grows for b in self.inputs)

    def _joined(self, port: PortRecord, pieces: list[Array]) -> Array:
        if not self._record(port.buffer).grows:
            return pieces[-1]
        return np.concatenate(pieces, axis=int(port.attributes.get("axis", 0)))
