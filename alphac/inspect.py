"""What a bundle holds, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from alphac.ir.passes.place import Share
from alphac.ir.protocol import Protocol, Reduced, Scope
from alphac.runtime.bundle import Bundle, ClassRecord, RoleRecord, Withheld, read_bundle


def describe(path: Path, role: int | None = None) -> str:
    """A bundle's parts, or one role's plan and local protocol. Raises RuntimeFault for a bundle that is refused."""
    bundle = read_bundle(path)
    return "\n".join(_role(bundle, role) if role is not None else _whole(bundle))


def _whole(bundle: Bundle) -> Iterator[str]:
    m = bundle.manifest
    yield f"system    {m.system}  identity {m.identity[:16]}"
    yield f"bundle    {m.bundle[:16]}"
    if m.grain:
        yield f"grain     {m.grain.shards} shards of {m.grain.rows} {m.grain.name} each"
    for s in m.states:
        yield f"{s.kind:<9} {s.name}: {s.dtype}{list(s.shape)}"
    for d in m.data.values():
        columns = ", ".join(f"{c.name} {c.dtype}{list(c.shape)}" for c in d.columns)
        yield f"data      {d.name}: {columns}  ({d.path})"
    symbols = next((c.symbols for c in m.classes if isinstance(c, ClassRecord)), {})
    for name, p in m.programs.items():
        segments = sum(s.kind == "segment" for s in p.steps)
        kernels = len(set(symbols[name]))
        exchanges = sum(s.kind == "exchange" for s in p.steps)
        yield f"program   {name}: {segments} segments, {kernels} kernels, {exchanges} exchanges"
    for i, strand in enumerate(m.strands):
        who = f"regions {', '.join(strand.regions)}" if strand.regions else "everything else"
        yield f"strand {i}  {who}, on {', '.join(strand.targets)}"
    for i, c in enumerate(m.classes):
        if isinstance(c, ClassRecord):
            memory = f"arena {_size(c.arena)}, scratch {_size(c.scratch)} per thread"
            yield f"class {i}   {' + '.join(map(str, c.owned))} shards, {c.target}, {memory}"
            for symbol, tile in c.tiles.items():
                yield f"          {symbol}: register tile {tile}, the fastest where this was compiled"
    for r in m.roles:
        if not isinstance(r, Withheld):
            yield f"role {r.role:<4} class {r.role_class}, shards {_shown(r)}"


def _role(bundle: Bundle, number: int) -> Iterator[str]:
    role = bundle.role(number)
    record = bundle.class_of(role.role_class)
    yield f"role {number}: shards {_shown(role)}, {record.target}, arena {_size(record.arena)}"
    content = json.loads(bundle.read("protocol.json"))
    scopes = tuple(
        Scope(**{**s, "values": tuple(Reduced(**v) for v in s["values"]), "sends": tuple(s["sends"])})
        for s in content["scopes"]
    )
    shares = tuple(tuple(Share(**s) for s in strand) for strand in content["shares"])
    protocol = Protocol(content["shards"], shares, scopes)
    yield json.dumps(protocol.project(number), indent=1)


def _shown(role: RoleRecord) -> str:
    """The shards that a role owns, strand by strand."""
    return "; ".join(f"{first} to {first + count - 1}" if count else "none" for first, count in role.ranges)


def _size(count: int) -> str:
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"
