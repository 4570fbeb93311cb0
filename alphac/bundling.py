"""The last stage: a compiled system as a bundle on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alphac.ir.core import Data, Module
from alphac.ir.passes.admit import Strand
from alphac.ir.passes.place import Share
from alphac.ir.passes.plan_memory import place_states, plan_memory
from alphac.ir.protocol import Protocol
from alphac.ir.schedule import Guard, Program, kernels_in
from alphac.ir.schedule_text import print_program
from alphac.ir.text import print_module
from alphac.runtime import bundle as format
from alphac.runtime.bundle import Bundle, file_digest, record_from, write_bundle

if TYPE_CHECKING:
    from alphac.backends.emit import Code


Kind = tuple[str, frozenset[int]]  # a target, and the strands of which a role owns shards


def kinds(shares: Sequence[Sequence[Share]], targets: Sequence[str], strands: Sequence[Strand]) -> list[Kind]:
    """The kinds of code that roles need, in their order; last the kinds of roles that work alone: one that owns
    everything, or several that own all that their targets may."""
    found = [(name, _owned(owned)) for owned, name in zip(shares, targets, strict=True)]
    may: dict[frozenset[int], str] = {}
    for name in targets:
        may.setdefault(frozenset(k for k, strand in enumerate(strands) if name in strand.targets), name)
    return found + [(name, owned) for owned, name in may.items() if not any(owned < other for other in may)]


def _owned(shares: Sequence[Share]) -> frozenset[int]:
    return frozenset(k for k, share in enumerate(shares) if share.shards)


@dataclass(frozen=True)
class Draft:
    """Everything that the stages made: `elaborated` as written, `module` as compiled; by role its `shares` (one of each
    strand), and its `targets`; `code` by target and the strands that it is for; `plan`: what placement decided between,
    as JSON, "" if it had nothing to decide; `tiles`: register tiles that measuring chose, by kernels' symbols."""

    elaborated: Module
    module: Module
    programs: Mapping[str, Program]
    shares: tuple[tuple[Share, ...], ...]
    strands: tuple[Strand, ...]
    targets: tuple[str, ...]
    protocol: Protocol
    code: Mapping[Kind, Code]
    plan: str = ""
    tiles: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def system(self) -> str:
        """The system's name."""
        return self.module.system


def shard_count(module: Module) -> int:
    """Logical shards: 1 when nothing is batched."""
    return module.grain.shards if module.grain else 1


def write(draft: Draft, directory: Path, sources: Path) -> Bundle:
    """Write the bundle. `sources`: the folder that data paths are relative to."""
    module = draft.module
    paths = {name: sources / data.path for name, data in module.data.items()}
    files: dict[str, bytes | Path] = {
        "ir/system.ir": print_module(draft.elaborated).encode(),
        "ir/compiled.ir": print_module(module).encode(),
        "ir/schedule.txt": "\n".join(print_program(p) for p in draft.programs.values()).encode(),
        "protocol.json": json.dumps(draft.protocol.as_dict(), indent=1).encode(),
    }
    if draft.plan:
        files["plan.json"] = draft.plan.encode()
    for kind, code in draft.code.items():
        name = _name(kind, len(draft.strands))
        files[f"objects/{name}.o"] = code.object()
        files[f"kernels/{name}.{'py' if code.target.printer is None else 'c'}"] = kernels_text(code).encode()
    names = {name: f"data/{name}{path.suffix}" for name, path in paths.items()}
    files |= {names[name]: path for name, path in paths.items()}
    classes, roles, alone = _classes(draft)
    record = next(iter(draft.code.values())).records
    manifest = format.Manifest(
        system=module.system,
        identity=system_identity(draft.elaborated, {name: file_digest(path) for name, path in paths.items()}),
        grain=format.GrainRecord(module.grain.name, module.grain.size, module.grain.shards) if module.grain else None,
        seed=module.seed,
        states=tuple(
            format.StateRecord(s.name, s.type.dtype.name, s.type.shape, s.kind) for s in module.states.values()
        ),
        data={name: _data(data, names[name]) for name, data in module.data.items()},
        training=_training(module),
        evaluations=tuple(format.EvaluationRecord(e.name, e.data, e.split) for e in module.evaluations.values()),
        programs={name: record_from(format.ProgramRecord, record[name]) for name in draft.programs},
        classes=tuple(classes),
        roles=tuple(roles),
        strands=tuple(format.StrandRecord(tuple(sorted(s.targets)), s.regions) for s in draft.strands)
        if len(draft.strands) > 1
        else (),
        solo=alone[0] if len(alone) == 1 else -1,
        apart=tuple(alone[1:] and alone),
    )
    return write_bundle(directory, manifest, files)


def system_identity(module: Module, digests: Mapping[str, str]) -> str:
    """sha256 of what shapes learning: the elaborated IR (source and overrides) and the data's digests."""
    files = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(f"{print_module(module, spans=False)}\n{files}".encode()).hexdigest()


def kernels_text(code: Code) -> str:
    """The source of every kernel for one target: in its own language, if it has one."""
    if code.target.printer is not None:
        return f"// {code.target.name}\n\n{code.target.printer(code.sources.values())}"
    return f"# {code.target.name}\n\n" + "\n\n".join(s.source.rstrip() for s in code.sources.values()) + "\n"


def _classes(draft: Draft) -> tuple[list[format.ClassRecord], list[format.RoleRecord], list[int]]:
    """Role classes (equal shares and target), the roles in them, and the classes of roles that work alone."""
    keys: dict[tuple[tuple[int, ...], str], int] = {}
    classes: list[format.ClassRecord] = []

    def class_of(owned: tuple[int, ...], name: str) -> int:
        if (owned, name) not in keys:
            keys[owned, name] = len(classes)
            classes.append(_class(draft, owned, name))
        return keys[owned, name]

    roles: list[format.RoleRecord] = []
    for k, (shares, name) in enumerate(zip(draft.shares, draft.targets, strict=True)):
        number = class_of(tuple(share.shards for share in shares), name)
        (first, count), *others = ((share.first, share.shards) for share in shares)
        roles.append(format.RoleRecord(k, number, first, count, tuple(others)))
    shards, strands = shard_count(draft.module), range(len(draft.strands))
    alone = kinds(draft.shares, draft.targets, draft.strands)[len(roles) :]
    return classes, roles, [class_of(tuple(shards * (k in owned) for k in strands), name) for name, owned in alone]


def _class(draft: Draft, owned: tuple[int, ...], name: str) -> format.ClassRecord:
    kind = name, frozenset(k for k, count in enumerate(owned) if count)
    code = draft.code[kind]
    programs, symbols = draft.programs, code.symbols
    if all(count == shard_count(draft.module) for count in owned):
        programs, symbols = code.whole, {n: _replayed(code.whole[n], draft.programs[n], symbols[n]) for n in symbols}
    states, base = place_states(programs.values(), owned)
    plans = {n: plan_memory(program, owned, states, base, code.scratch) for n, program in programs.items()}
    return format.ClassRecord(
        shards=owned[0],
        target=name,
        object=f"objects/{_name(kind, len(owned))}.o",
        arena=max([base, *(plan.arena for plan in plans.values())]),
        scratch=max([code.scratch, *(plan.scratch for plan in plans.values())]),
        plans={n: format.ProgramPlan(plan.offsets) for n, plan in plans.items()},
        symbols={n: tuple(symbols[n]) for n in draft.programs},
        tiles={symbol: tile for symbol, tile in sorted(draft.tiles.items()) if symbol in code.sources},
        features=code.target.needs,
        device=code.target.device,
        others=owned[1:],
    )


def _replayed(whole: Program, program: Program, symbols: Sequence[str]) -> list[str]:
    """The symbols of a program's kernels; if a role that owns all shards runs them in another order, without what then
    follows the guard: there is no memory yet for what these make when a replay would run them."""
    if whole is program:
        return list(symbols)
    guard = max((i for i, step in enumerate(whole.steps) if isinstance(step, Guard)), default=len(whole.steps))
    before = set(kernels_in(whole.steps[:guard]))
    return [symbol if kernel in before else "" for kernel, symbol in zip(program.kernels(), symbols, strict=True)]


def _name(kind: Kind, strands: int) -> str:
    """What the files of a kind of code are called: by target, and its strands if these are not all."""
    target, owned = kind
    return target if len(owned) == strands else f"{target}-{'-'.join(map(str, sorted(owned)))}"


def _data(data: Data, path: str) -> format.DataRecord:
    fields: dict[str, Any] = {
        name: getattr(data, name)
        for name in ("name", "format", "held_out", "stratified_by", "split_seed", "split_kind", "shuffle_seed")
    }
    columns = tuple(
        format.ColumnRecord(c.name, c.source, c.type.dtype.name, c.type.shape, c.window, c.stride, c.offset)
        for c in data.columns
    )
    return format.DataRecord(path=path, columns=columns, **fields)


def _training(module: Module) -> format.TrainingRecord | None:
    t = module.training
    return t and format.TrainingRecord(t.data, t.epochs, t.steps, t.checkpoint_epochs, t.checkpoint_steps)
