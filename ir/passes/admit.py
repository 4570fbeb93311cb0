"""Admission: which target can run what of a system?

Each strand of a function (`strands.py`) is admitted by its own needs: those of its regions, its ops and their element
types. Targets that can run none of a training step, or not what every role runs, cannot take part; a refusal names what
is missing and every target that lacks it. Nothing is admitted by falling back to another target.

before: region `project` requires matrix(bf16), a `transition` does not; roles on x86-64-v4 (lacks it) and gpu (has it)
after:  Strand({x86-64-v4, gpu}), Strand({gpu}, ("project",)); or, if nothing could be done without it,
        Refusal("region `project`", "matrix(bf16)", ("x86-64-v4",))

A need is a word that a target must have among its capabilities, but for `scratch(BYTES)`: it must have as much. What is
not `numeric fast` needs `numeric exact`: in a system that has fast regions and others, every strand without a fast one
or with an exact one; else everything or nothing. What every role runs is no region's: a target that may flush subnormal
numbers does it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from alphac.ir.core import Attribute, Module, Op, walk_op
from alphac.ir.passes.strands import Component, Need, components, needs_of, spun, unmarked
from alphac.ir.rewrite import map_functions
from alphac.ir.span import Span

SCRATCH = "scratch("
EXACT = "numeric exact"  # the capability: every operation rounded as docs/numerics.md says, subnormal numbers kept


@dataclass(frozen=True)
class Refusal:
    """`what` needs `missing`, which `targets` lack; `span` is where it is asked for, if it is in so many words."""

    what: str
    missing: str
    targets: tuple[str, ...]
    span: Span | None = None

    def text(self, endpoints: Mapping[str, Sequence[str]]) -> str:
        """For people; `endpoints`: by target, those of the fleet, if they have names."""
        lacking = [_named(target, endpoints) for target in self.targets]
        return f"{self.what} needs {self.missing}, which {' and '.join(lacking)} lack{'s' * (len(lacking) == 1)}"

    def __str__(self) -> str:
        return self.text({})


@dataclass(frozen=True)
class Parting:
    """`asking` each need something of the `missing`, and hand values of examples to each other, so that one target must
    have all of it: of each of `targets`, what it lacks. `span` is where it is first asked for."""

    asking: tuple[str, ...]
    missing: tuple[str, ...]
    lacking: tuple[tuple[str, tuple[str, ...]], ...]
    span: Span | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(target for target, _ in self.lacking)

    def text(self, endpoints: Mapping[str, Sequence[str]]) -> str:
        """For people, as of a `Refusal`."""
        lacking = [f"{_named(t, endpoints)} lacks {' and '.join(lacked)}" for t, lacked in self.lacking]
        who = " and ".join(self.asking)
        return f"{who} hand on values of examples, so one must have {' and '.join(self.missing)}: {', '.join(lacking)}"


def _named(target: str, endpoints: Mapping[str, Sequence[str]]) -> str:
    """A target with the names of a fleet's endpoints that have it."""
    return f"{target} ({', '.join(names)})" if (names := endpoints.get(target)) else target


@dataclass(frozen=True)
class Strand:
    """Part of a system whose shards only some `targets` may own (`strands.py`); `regions` are those in it that ask for
    something."""

    targets: frozenset[str]
    regions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Admission:
    """What admission comes to: the module with its strands apart, or why some targets cannot take part."""

    module: Module
    strands: tuple[Strand, ...]
    refusals: tuple[Refusal | Parting, ...] = ()


def settled(module: Module, capabilities: Mapping[str, frozenset[str]]) -> Module:
    """The module without the marks that tell exact regions from fast ones, if all targets can do both: so marks keep
    apart only what somebody cannot run. The same module if there are none."""
    if not is_mixed(module) or not all(provides(able, EXACT) for able in capabilities.values()):
        return module

    def kept(op: Op) -> bool:
        needs = op.attributes["needs"]
        assert isinstance(needs, tuple)
        return bool(set(needs) - {EXACT})

    return map_functions(module, lambda function: unmarked(function, kept))


def is_mixed(module: Module) -> bool:
    """Whether a system has regions with `numeric fast` and others."""
    return len({contract.numeric for contract in module.regions.values()}) > 1


def admit(module: Module, capabilities: Mapping[str, frozenset[str]]) -> Admission:
    """`capabilities`: what each target of the plan can do."""
    return _Admitting(module, capabilities).run()


class _Admitting:
    def __init__(self, module: Module, capabilities: Mapping[str, frozenset[str]]) -> None:
        self.module, self.capabilities = module, capabilities
        self.refused: dict[Need, dict[str, None]] = {
            (f"region `{name}`", need): {} for name, contract in module.regions.items() for need in contract.requires
        }
        self.parted: dict[tuple[Need, ...], None] = {}
        self.found = {name: components(function) for name, function in module.functions.items()}
        if is_mixed(module):
            return
        exact = [f"region `{name}`" for name, contract in module.regions.items() if contract.numeric != "fast"]
        for what in exact if module.regions else (f"function `{name}`" for name in module.functions):
            self._refuse(what, [(what, EXACT)], capabilities)

    def run(self) -> Admission:
        asked = self._examined()
        for (what, need), targets in self.refused.items():
            if (what, need) not in asked:  # of a region that nothing uses
                lacking = [t for t, able in self.capabilities.items() if not provides(able, need)]
                targets.update(dict.fromkeys(lacking if len(lacking) == len(self.capabilities) else ()))
        spans = {f"region `{name}`": contract.span for name, contract in self.module.regions.items()}
        refusals = [
            Refusal(what, need, tuple(t for t in self.capabilities if t in targets), spans.get(what))
            for (what, need), targets in self.refused.items()
            if targets
        ]
        partings = [self._parting(needs, spans) for needs in self.parted]
        if refusals or partings:
            return Admission(self.module, (), (*refusals, *partings))
        return self._strands()

    def _examined(self) -> set[Need]:
        """Note who can do what; all needs there are."""
        asked: set[Need] = set()
        for name, (parts, shared) in self.found.items():
            groups = [self._needs(part) for part in parts]
            for needs in (dict.fromkeys(n for op in shared for n in needs_of(op)), *groups):
                asked.update(needs)
            for op in shared:
                self._refuse(name, dict.fromkeys(needs_of(op)), self.capabilities)
            for needs in groups:
                if self._able(needs):
                    continue
                if all(self._able([need]) for need in needs):  # each is somewhere, and nowhere are all
                    some = (need for need in needs if len(self._able([need])) < len(self.capabilities))
                    self.parted[tuple(sorted((what or f"function `{name}`", need) for what, need in some))] = None
                else:
                    self._refuse(name, needs, self.capabilities)
            if name == "step" and groups:  # who owns nothing of it has nothing to do
                idle = [t for t in self.capabilities if not any(t in self._able(needs) for needs in groups)]
                for needs in groups:
                    self._refuse(name, needs, idle)
        return asked

    def _parting(self, needs: Sequence[Need], spans: Mapping[str, Span | None]) -> Parting:
        asking, missing = (tuple(dict.fromkeys(words)) for words in zip(*needs, strict=True))
        lacking = [(t, tuple(n for n in missing if not provides(has, n))) for t, has in self.capabilities.items()]
        return Parting(asking, missing, tuple(lacking), spans.get(asking[0]))

    def _refuse(self, function: str, needs: Iterable[Need], targets: Iterable[str]) -> None:
        for what, need in needs:
            for target in targets:
                if not provides(self.capabilities[target], need):
                    self.refused.setdefault((what or f"function `{function}`", need), {})[target] = None

    def _needs(self, part: Component) -> dict[Need, None]:
        """What a target must have that runs a component."""
        needs = part.needs
        if is_mixed(self.module) and not any(self.module.regions[r].numeric == "fast" for r in _marked(part.ops)):
            needs["", EXACT] = None
        return needs

    def _able(self, needs: Iterable[Need]) -> frozenset[str]:
        able = self.capabilities.items()
        needs = list(needs)
        return frozenset(t for t, has in able if all(provides(has, need) for _, need in needs))

    def _strands(self) -> Admission:
        everybody = frozenset(self.capabilities)
        able = {id(c): self._able(self._needs(c)) for parts, _ in self.found.values() for c in parts}
        sets = sorted(dict.fromkeys(able.values()), key=lambda s: s != everybody) or [everybody]
        regions: dict[frozenset[str], dict[str, None]] = {s: {} for s in sets}
        functions = dict(self.module.functions)
        for name, (parts, shared) in self.found.items():
            numbers: dict[Op, int] = {}
            marked = bool(_marked(shared))
            for part in parts:
                numbers |= dict.fromkeys(part.ops, sets.index(able[id(part)]))
                found = _marked(part.ops)
                regions[able[id(part)]].update(dict.fromkeys(name for name, needs in found.items() if needs))
                marked = marked or bool(found)
            if marked or any(numbers.values()):
                functions[name] = spun(functions[name], numbers)
        strands = tuple(Strand(s, tuple(regions[s])) for s in sets)
        return Admission(replace(self.module, functions=functions), strands)


def _marked(ops: Iterable[Op]) -> dict[str, Attribute]:
    """The regions that hand on what is in some ops, and what they ask for."""
    inner = (each for op in ops for each in walk_op(op))
    return {str(op.attributes["region"]): op.attributes["needs"] for op in inner if op.name == "require"}


def provides(capabilities: Iterable[str], need: str) -> bool:
    """Whether a need is among a target's capabilities."""
    if need.startswith(SCRATCH):
        return scratch_of([need]) <= scratch_of(capabilities)
    return need in capabilities


def scratch_of(capabilities: Iterable[str]) -> int:
    """The most bytes of scratch memory that are among capabilities."""
    return max((_bytes(c) for c in capabilities if c.startswith(SCRATCH)), default=0)


def _bytes(scratch: str) -> int:
    return int(scratch.removeprefix(SCRATCH).removesuffix(")"))
