"""What placement must know of a compiled system: its work, its memory, and where a region may be cut.

before: a module and the programs of its functions
after:  a System (`ir/passes/plan.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from alphac.ir.core import Module
from alphac.ir.passes.plan import System, Unit
from alphac.ir.passes.plan_memory import Owned, place_states, plan_memory
from alphac.ir.passes.work import Amount, Count, KernelWork, kernel_work, uncounted, work_of
from alphac.ir.schedule import Buffer, Kernel, Launch, Program, Repeat, Tiles

SCRATCH = 1 << 20  # bytes that kernels take of a thread's scratch memory, before they are lowered
EXAMPLES = 1024  # that there are if nothing is known of the data
UNITS = 12  # parts of a region that pipelines are cut between, at most
Step = tuple[tuple[Kernel, ...], Amount]  # what is not cut: kernels, and how often they are called


def survey(module: Module, programs: Mapping[str, Program], data: int = 0, count: Count = uncounted) -> System:
    """`data`: bytes of the files that a role reads; `count`: says what a kernel's code does, if somebody does."""
    shards = module.grain.shards if module.grain else 1
    step = programs["step"] if "step" in programs else Program("step")
    sizes = {"param": 0, "optimizer": 0, "state": 0}
    for state in module.states.values():
        sizes[state.kind] += state.type.bytes
    regions = [p for name, p in programs.items() if name.startswith("region.")]
    chains = [_units(p, count) for p in regions]
    return System(
        shards,
        work_of(step, count),
        parameters=sizes["param"],
        optimizer=sizes["optimizer"],
        states=sum(sizes.values()),
        arena=_arena(programs, shards),
        nodes=sum(b.type.bytes for b in step.buffers if b.role == "nodes"),
        scratch=SCRATCH,
        data=data,
        draw=_draws(module, data),
        units=max(chains, key=lambda units: sum(_weight(u) for u in units), default=()),
    )


def shuffle_rounds(count: int) -> int:
    """Rounds of the shuffle of so many examples (docs/numerics.md, "Random numbers")."""
    return 4 * max(count - 1, 1).bit_length() + 8


def _draws(module: Module, data: int) -> float:
    """Rounds of the shuffle in a step, for each shard: of its examples, as many as the `data` may hold."""
    training, grain = module.training, module.grain
    if training is None or grain is None or module.data[training.data].shuffle_seed < 0:
        return 0.0
    columns = module.data[training.data].columns
    example = max(1, sum((c.stride or c.type.size) * c.type.dtype.bytes for c in columns))
    return grain.size / grain.shards * shuffle_rounds(max(data // example, EXAMPLES))


def arena_bytes(programs: Mapping[str, Program], shards: Owned) -> int:
    """Bytes of a role's arena that owns so many shards."""
    states, base = place_states(programs.values(), shards)
    return max([base, *(plan_memory(p, shards, states, base, 0).arena for p in programs.values())])


def _arena(programs: Mapping[str, Program], shards: int) -> Callable[[Owned], int]:
    """`arena_bytes` by shards: exact at powers of two and where strands are owned apart, a line between."""

    @cache
    def exact(owned: Owned) -> int:
        return arena_bytes(programs, owned)

    def arena(owned: Owned) -> int:
        if not isinstance(owned, int):
            return exact(tuple(owned))
        low = 1 << owned.bit_length() - 1
        high = min(2 * low, shards)
        if owned in (low, high):
            return exact(owned)
        return exact(low) + (exact(high) - exact(low)) * (owned - low) // (high - low)

    return arena


def _weight(unit: Unit) -> float:
    return sum(k.fma.at(1) + k.flop.at(1) for k in unit.kernels)


# ---------------------------------------------------------------------- where a region may be cut
def _units(program: Program, count: Count) -> tuple[Unit, ...]:
    """A region's steps as parts, a `repeat`'s iterations one by one; neighbours together where there are too many."""
    steps = list(_steps(program))
    per = -(-len(steps) // UNITS) if steps else 1
    groups = [range(k, min(k + per, len(steps))) for k in range(0, len(steps), per)]
    touched = [{id(b) for kernel in kernels for b in kernel.buffers()} for kernels, _ in steps]
    return tuple(_unit(steps, group, touched, count) for group in groups)


def _steps(program: Program) -> Iterator[Step]:
    for step in program.steps:
        if isinstance(step, Launch):
            yield (step.kernel,), Amount(1)
        elif isinstance(step, Tiles):
            yield tuple(launch.kernel for launch in step.steps), Amount(0, _iterations(step))
        elif isinstance(step, Repeat):
            body = tuple(launch.kernel for launch in step.steps if isinstance(launch, Launch))
            yield from ((body, Amount(1)) for _ in range(step.count))


def _iterations(tiles: Tiles) -> float:
    count = 1.0
    for dim in tiles.dims:
        count *= dim.size / (dim.shards or 1)
    return count


def _unit(steps: list[Step], group: range, touched: list[set[int]], count: Count) -> Unit:
    kernels: list[KernelWork] = []
    stored: dict[int, Buffer] = {}
    states: dict[int, float] = {}
    for k in group:
        made, calls = steps[k]
        kernels += [kernel_work(kernel, calls, 1, count) for kernel in made]
        stored |= {id(view.buffer): view.buffer for kernel in made for _, view in kernel.stores}
        for view in (view for kernel in made for view in kernel.reads.values()):
            if view.buffer.role == "state":
                sliced = {name for name, _ in view.slices}
                part = 1
                for dim in view.buffer.type.dims:
                    part *= 1 if dim.name in sliced else dim.size
                states[id(view.buffer)] = part * view.buffer.type.dtype.bytes
    later = {b for k in range(group.stop, len(touched)) for b in touched[k]}
    name = steps[group[0]][0][0].name
    kept = sum(_shard_bytes(b) for b in stored.values())
    boundary = sum(_shard_bytes(b) for key, b in stored.items() if key in later)
    return Unit(name, tuple(kernels), int(sum(states.values())), kept, boundary)


def _shard_bytes(buffer: Buffer) -> int:
    return buffer.per_shard * buffer.type.dtype.bytes
