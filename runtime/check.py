"""What a manifest must satisfy beyond its types, so that nothing it says makes a role read or write out of bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable

from alphac.runtime.coding import CodingError
from alphac.runtime.records import (
    ITEM_BYTES,
    BufferRecord,
    ClassRecord,
    DataRecord,
    Manifest,
    PortRecord,
    ProgramRecord,
    RoleRecord,
    StepRecord,
)
from alphac.runtime.tree import subtrees

MAX_BYTES = 1 << 46
MAX_SHARDS = 1 << 24
ROLES_OF_BUFFERS = ("state", "argument", "temporary", "private", "nodes")
RUNTIME_LOOPS = 4
KINDS = ("sum", "max", "min")
FORMATS = ("npz", "npy", "csv", "safetensors", "text")
SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]{0,254}")
DIGEST = re.compile(r"[0-9a-f]{64}")


def check_manifest(manifest: Manifest) -> None:
    """Raises CodingError naming what does not fit."""
    _require(DIGEST.fullmatch(manifest.identity) is not None, "identity must be a sha256 in hex")
    grain = manifest.grain
    if grain is not None:
        fits = 0 < grain.shards <= grain.size <= MAX_BYTES and grain.size % grain.shards == 0
        _require(fits and grain.shards <= MAX_SHARDS, f"grain {grain.shards} does not cut a batch of {grain.size}")
    for file, record in manifest.files.items():
        _require(DIGEST.fullmatch(record.sha256) is not None and 0 <= record.bytes <= MAX_BYTES, f"file {file} is odd")
    names = [state.name for state in manifest.states]
    _require(len(set(names)) == len(names), "a state is declared twice")
    for state in manifest.states:
        _shape(state.dtype, state.shape, f"state {state.name}")
    for name, data in manifest.data.items():
        _data(manifest, name, data)
    if manifest.training is not None:
        training = manifest.training
        _require(training.data in manifest.data, f"training reads unknown data `{training.data}`")
        counts = (training.epochs, training.steps, training.checkpoint_epochs, training.checkpoint_steps)
        _require(min(counts) >= 0 and "step" in manifest.programs, "training has no step or negative counts")
    for evaluation in manifest.evaluations:
        _require(evaluation.data in manifest.data, f"evaluation {evaluation.name} reads unknown data")
        _require(evaluation.split in ("train", "test"), f"evaluation {evaluation.name} reads an unknown split")
        for part in ("evaluate", "finish"):
            _require(f"{part}.{evaluation.name}" in manifest.programs, f"program {part}.{evaluation.name} is missing")
    for name, program in manifest.programs.items():
        _program(manifest, name, program)
    for number, record in enumerate(manifest.classes):
        if isinstance(record, ClassRecord):
            _class(manifest, f"class {number}", record)
    _roles(manifest)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CodingError(f"manifest: {message}")


def _shape(dtype: str, shape: Iterable[int], where: str) -> None:
    _require(dtype in ITEM_BYTES, f"{where} has no dtype `{dtype}`")
    size = ITEM_BYTES[dtype]
    for extent in shape:
        _require(extent >= 0, f"{where} has a negative extent")
        size *= extent
    _require(size <= MAX_BYTES, f"{where} is absurdly large")


def _data(manifest: Manifest, name: str, data: DataRecord) -> None:
    _require(data.name == name and data.path in manifest.files, f"data {name} has no file in the bundle")
    _require(data.format in FORMATS, f"data {name} has unknown format `{data.format}`")
    _require(0 <= data.held_out < 1 and data.split_kind in ("random", "tail"), f"data {name} has an odd split")
    known = [column.name for column in data.columns]
    _require(not data.stratified_by or data.stratified_by in known, f"data {name} is stratified by no column")
    for column in data.columns:
        _shape(column.dtype, column.shape, f"column {name}.{column.name}")
        windowed = column.window > 0
        _require(not windowed or (column.stride > 0 and column.offset >= 0), f"column {name}.{column.name}: odd window")


def _program(manifest: Manifest, name: str, program: ProgramRecord) -> None:
    _require(program.name == name, f"program {name} is called {program.name}")
    for buffer in program.buffers:
        where = f"{name}: buffer {buffer.name}"
        _shape(buffer.dtype, buffer.shape, where)
        _require(buffer.role in ROLES_OF_BUFFERS, f"{where} has unknown role `{buffer.role}`")
        if buffer.grows:
            fits = bool(buffer.shape) and buffer.rows == buffer.shape[0] > 0
            _require(fits, f"{where} grows, but its first axis is not its rows")
        if buffer.role == "state":
            _state(manifest, where, buffer)
    for port in (*program.arguments, *program.results):
        _port(manifest, name, program, port)
    named = SYMBOL.fullmatch(program.whole) is not None if program.steps else not program.whole
    _require(named, f"{name}: the whole of it is odd")
    _require(sum(port.kind == "step" for port in program.arguments) <= 1, f"{name} asks twice for the step")
    _steps(name, program, program.steps, 0)


def _state(manifest: Manifest, where: str, buffer: BufferRecord) -> None:
    declared = next((s for s in manifest.states if s.name == buffer.state), None)
    fits = declared is not None and (declared.dtype, declared.shape) == (buffer.dtype, buffer.shape)
    _require(fits and not buffer.grows, f"{where} is not the declared state `{buffer.state}`")


def _port(manifest: Manifest, name: str, program: ProgramRecord, port: PortRecord) -> None:
    where = f"{name}: {port.kind} {port.name}"
    _require(0 <= port.buffer < len(program.buffers), f"{where} has no buffer")
    buffer = program.buffers[port.buffer]
    if port.kind == "state":
        _require(buffer.role == "state" and buffer.state == port.name, f"{where} is bound to another buffer")
    elif port.kind == "column":
        data, _, column = port.name.partition(".")
        record = (
            next((c for c in manifest.data[data].columns if c.name == column), None) if data in manifest.data else None
        )
        fits = record is not None and buffer.grows and (record.dtype, record.shape) == (buffer.dtype, buffer.shape[1:])
        _require(fits, f"{where} is not a declared column")
        _require(manifest.grain is not None and buffer.rows == manifest.grain.rows, f"{where} has odd rows")
    elif port.kind in ("step", "valid", "count"):
        _require((buffer.dtype, buffer.elements, buffer.grows) == ("i64", 1, False), f"{where} must be an i64[]")
    elif port.kind in ("loss", "metric"):
        _require(buffer.elements == 1 and not buffer.grows, f"{where} must be a scalar")


def _steps(name: str, program: ProgramRecord, steps: Iterable[StepRecord], depth: int) -> None:
    count = len(program.buffers)
    for step in steps:
        if step.kind == "segment":
            _require(SYMBOL.fullmatch(step.symbol) is not None, f"{name}: odd symbol")
            for kernel in step.kernels:
                fits = (
                    0 <= kernel.stores <= len(kernel.buffers)
                    and all(0 <= b < count for b in kernel.buffers)
                    and all(loop.count >= 0 and loop.rows >= 0 for loop in kernel.loops)
                )
                _require(fits, f"{name}: a kernel of {step.symbol[:80]} is odd")
            _require(all(0 <= b < count for guard in step.guards for b in guard), f"{name}: a guard has no buffer")
        elif step.kind == "exchange":
            _require(bool(step.buffers) and len(step.buffers) == len(step.kinds), f"{name}: an exchange is odd")
            for buffer, kind in zip(step.buffers, step.kinds, strict=True):
                fits = 0 <= buffer < count and program.buffers[buffer].role == "nodes" and kind in KINDS
                _require(fits and not program.buffers[buffer].grows, f"{name}: an exchange is odd")
        elif step.kind == "repeat":
            fits = step.count >= 0 and step.index == depth < RUNTIME_LOOPS
            _require(fits, f"{name}: a repeat is odd")
            _steps(name, program, step.steps, depth + 1)
        else:
            raise CodingError(f"manifest: {name} has a step of unknown kind `{step.kind[:40]}`")


def _class(manifest: Manifest, where: str, record: ClassRecord) -> None:
    owned = record.owned
    fits = len(owned) == max(1, len(manifest.strands)) and max(owned) > 0
    _require(fits and 0 <= min(owned) <= max(owned) <= manifest.shards, f"{where} owns {record.shards} shards")
    _require(record.object in manifest.files, f"{where} has no object file")
    _require(0 <= record.arena <= MAX_BYTES and 0 <= record.scratch <= MAX_BYTES, f"{where} asks for absurd memory")
    _require(set(record.plans) == set(manifest.programs), f"{where} lacks the plan of a program")
    _require(set(record.symbols) == set(manifest.programs), f"{where} lacks the symbols of a program")
    # Who owns none of a strand's shards does not run its kernels; who owns all shards may not replay all of them.
    spare = not min(owned) or min(owned) == manifest.shards
    for name, symbols in record.symbols.items():
        fits = len(symbols) == _kernels(manifest.programs[name].steps)
        fits = fits and all(SYMBOL.fullmatch(symbol) for symbol in symbols if symbol or not spare)
        _require(fits, f"{where}: {name}: odd symbols of kernels")
    nodes = [_most_subtrees(manifest, record, strand) for strand in range(len(owned))]
    states: dict[str, int] = {}
    for name, plan in record.plans.items():
        buffers = manifest.programs[name].buffers
        _require(len(plan.offsets) == len(buffers), f"{where}: {name} lacks offsets")
        for buffer, offset in zip(buffers, plan.offsets, strict=True):
            part, memory = ("scratch", record.scratch) if buffer.role == "private" else ("arena", record.arena)
            strand = buffer.strand
            _require(0 <= strand < len(owned), f"{where}: {name}: buffer {buffer.name} is of an unknown strand")
            inside = 0 <= offset <= offset + buffer.bytes(owned[strand], nodes[strand]) <= memory
            _require(inside and offset % 16 == 0, f"{where}: {name}: buffer {buffer.name} lies outside the {part}")
            if buffer.role == "state":
                same = states.setdefault(buffer.state, offset) == offset
                _require(same, f"{where}: state {buffer.state} lies in two places")


def _kernels(steps: Iterable[StepRecord]) -> int:
    """How many kernels there are in steps."""
    return sum(len(step.kernels) + _kernels(step.steps) for step in steps)


def _most_subtrees(manifest: Manifest, record: ClassRecord, strand: int) -> int:
    """The most subtrees of a strand that any role of this class contributes."""
    count = record.owned[strand]
    firsts = [
        role.ranges[strand][0]
        for role in manifest.roles
        if isinstance(role, RoleRecord)
        and 0 <= role.role_class < len(manifest.classes)
        and manifest.classes[role.role_class] is record
        and strand < len(role.ranges)
        and 0 <= role.ranges[strand][0] <= manifest.shards - count
    ]
    return max((len(subtrees(manifest.shards, first, count)) for first in firsts if count), default=1)


def _roles(manifest: Manifest) -> None:
    strands = max(1, len(manifest.strands))
    fits = 0 < len(manifest.roles) <= manifest.shards * strands
    _require(fits, f"{len(manifest.roles)} roles do not share {manifest.shards} shards")
    _require(-1 <= manifest.solo < len(manifest.classes), "solo names no class")
    if manifest.solo >= 0 and isinstance(solo := manifest.classes[manifest.solo], ClassRecord):
        _require(set(solo.owned) == {manifest.shards}, "the solo class does not own all shards")
    for number in manifest.apart:
        _require(0 <= number < len(manifest.classes), "apart names no class")
        if isinstance(record := manifest.classes[number], ClassRecord):
            _require(set(record.owned) == {0, manifest.shards}, "a class apart owns some shards of a strand")
    for number, role in enumerate(manifest.roles):
        if isinstance(role, RoleRecord):
            where = f"role {number}"
            _require(role.role == number and 0 <= role.role_class < len(manifest.classes), f"{where} is odd")
            record, owned = manifest.classes[role.role_class], tuple(n for _, n in role.ranges)
            _require(not isinstance(record, ClassRecord) or record.owned == owned, f"{where} is not of its class")
            _require(len(owned) == strands and max(owned) > 0, f"{where} owns no shards")
    for strand in range(strands):
        _shares(manifest, strand)


def _shares(manifest: Manifest, strand: int) -> None:
    """Roles own the shards of a strand in order, all of them."""
    after: int | None = 0  # where the next role must begin; unknown behind a withheld record
    for number, role in enumerate(manifest.roles):
        if not isinstance(role, RoleRecord):
            after = None
            continue
        first, shards = role.ranges[strand]
        where = f"role {number}"
        begins = first >= 0 and (after is None or first == after)
        _require(begins and shards >= 0, f"{where} does not own the shards after its predecessor's")
        after = first + shards
        _require(after <= manifest.shards, f"{where} owns shards that do not exist")
    _require(after in (None, manifest.shards), "the roles do not own all shards")
