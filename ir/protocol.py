"""The global protocol: who sends which version of which value to whom, and which group reduces what.

One scope per exchange of each program. In a scope every role but the root sends its maximal aligned subtrees up and
receives the roots of the trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from alphac.ir.passes.place import Share
from alphac.ir.schedule import Exchange, Program, Repeat, Step, subtrees


@dataclass(frozen=True)
class Reduced:
    """One value of a scope: `elements` of `dtype`, put together by `kind` (sum, max, min)."""

    value: str
    kind: str
    dtype: str
    elements: int
    bytes: int


@dataclass(frozen=True)
class Scope:
    """One exchange: `sends[k]` is how many subtrees role k contributes, of the shards of a `strand`; `rounds` how often
    it runs per call of the program (more than 1 inside a loop)."""

    program: str
    number: int
    rounds: int
    values: tuple[Reduced, ...]
    sends: tuple[int, ...]
    strand: int = 0

    @property
    def bound(self) -> int:
        """Bytes of the longest message of the scope."""
        return sum(v.bytes for v in self.values) * max(self.sends)


@dataclass(frozen=True)
class Protocol:
    """The scopes of all programs for one plan; `shares` by strand, then role."""

    shards: int
    shares: tuple[tuple[Share, ...], ...]
    scopes: tuple[Scope, ...]

    def check(self) -> None:
        """Every shard is contributed exactly once in every scope, and every message is bounded.

        Raises ValueError otherwise: a bug in placement.
        """
        for shares in self.shares:
            covered = [s for share in shares for s in range(share.first, share.first + share.shards)]
            if covered != list(range(self.shards)):
                raise ValueError(f"shards {covered} are not 0..{self.shards - 1} in order")
        for scope in self.scopes:
            owning = [min(1, share.shards) for share in self.shares[scope.strand]]
            if [min(1, n) for n in scope.sends] != owning or scope.bound <= 0:
                raise ValueError(f"scope {scope.number} of {scope.program} lacks a contribution or a bound")

    def project(self, role: int) -> dict[str, object]:
        """The local protocol of one role: per scope what it sends and what it receives."""
        root = role == 0
        return {
            "role": role,
            "scopes": [
                {
                    "program": s.program,
                    "scope": s.number,
                    "rounds": s.rounds,
                    "sends": [{"to": "all", "values": len(s.values)}]
                    if root
                    else [{"to": 0, "subtrees": s.sends[role]}],
                    "receives": [{"from": k, "subtrees": n} for k, n in enumerate(s.sends) if k]
                    if root
                    else [{"from": 0}],
                }
                for s in self.scopes
            ],
        }

    def as_dict(self) -> dict[str, object]:
        """For the bundle's protocol.json."""
        return asdict(self)


def protocol(programs: Mapping[str, Program], shards: int, shares: tuple[tuple[Share, ...], ...]) -> Protocol:
    """The protocol of a set of programs under a plan; `shares` by strand, then role."""
    sends = [
        tuple(len(subtrees(shards, share.first, share.shards)) if share.shards else 0 for share in strand)
        for strand in shares
    ]
    scopes: list[Scope] = []
    for name, program in programs.items():
        for number, (exchange, rounds) in enumerate(_exchanges(program.steps, 1)):
            values = tuple(
                Reduced(b.name, kind, b.type.dtype.name, b.type.size, b.type.bytes) for b, kind in exchange.buffers
            )
            strand = exchange.buffers[0][0].strand
            scopes.append(Scope(name, number, rounds, values, sends[strand], strand))
    made = Protocol(shards, shares, tuple(scopes))
    made.check()
    return made


def _exchanges(steps: tuple[Step, ...], rounds: int) -> Iterator[tuple[Exchange, int]]:
    for step in steps:
        if isinstance(step, Exchange):
            yield step, rounds
        elif isinstance(step, Repeat):
            yield from _exchanges(step.steps, rounds * step.count)
