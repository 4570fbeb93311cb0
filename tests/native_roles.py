"""For tests: roles in this process, their memory, their threads, what they exchange. Nothing of the compiler but the
IR, so that an emulated processor, which has no Numba, runs this too."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import llvmlite.binding as llvm
import numpy as np

from alphac.ir.oracle import Lanes, Oracle, to_compute, to_storage
from alphac.ir.passes.plan_memory import buffer_bytes, place_states, plan_memory
from alphac.ir.schedule import Buffer, Program, merges, split, subtrees


class Loaded:
    """An object in this process. `triple`: that of another system with the same processor, whose format it has."""

    def __init__(self, data: bytes, triple: str = "") -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        described = llvm.Target.from_triple(triple or llvm.get_process_triple())
        machine = described.create_target_machine(jit=True, codemodel="small")
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(data))
        self.engine.finalize_object()

    def address(self, symbol: str) -> int:
        found = self.engine.get_function_address(symbol)
        assert found, symbol
        return found

    def call(self, symbol: str, *arguments: int) -> int:
        return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(self.address(symbol))(*arguments)


def aligned(size: int) -> np.ndarray:
    """Zeroed bytes at a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def libc(name: str) -> int:
    """The address of a function of libc."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


class Runner(Protocol):
    """Runs segments of an object on roles."""

    def run(self, symbol: str, role: Role) -> int: ...

    def close(self) -> None: ...


class Team:
    """Threads that serve `team_run`."""

    def __init__(self, loaded: Loaded, threads: int) -> None:
        self.loaded, self.threads = loaded, threads
        self.words = aligned(384).view(np.int64)
        self.words[32] = libc("sched_yield")
        self.words[33] = libc("usleep")
        self.workers = [
            threading.Thread(target=loaded.call, args=("team_worker", self.words.ctypes.data, i))
            for i in range(1, threads)
        ]
        for worker in self.workers:
            worker.start()

    def run(self, symbol: str, role: Role) -> int:
        return self.loaded.call(
            "team_run", self.words.ctypes.data, self.loaded.address(symbol), role.table.ctypes.data, self.threads
        )

    def close(self) -> None:
        self.words[24] = 1
        for worker in self.workers:
            worker.join()


class Role:
    """One role's arena and table for one program."""

    def __init__(self, program: Program, shards: int, first: int, count: int, scratch: int, threads: int) -> None:
        self.program, self.shards, self.first, self.count = program, shards, first, count
        states, base = place_states([program], count)
        plan = plan_memory(program, count, states, base, scratch)
        self.offsets = plan.offsets
        self.arena = aligned(plan.arena)
        self.arena[:] = 0xA5
        self.barrier, self.merges = aligned(64 * threads), np.array(merges(shards, first, count), np.int64)
        stride = -(-max(plan.scratch, 1) // 64) * 64
        self.scratch = aligned(stride * threads)
        self.table = aligned(8 * (16 + len(program.buffers))).view(np.int64)
        base_address = self.arena.ctypes.data
        head = [count, first, self.merges.ctypes.data, self.scratch.ctypes.data, stride, self.barrier.ctypes.data]
        self.table[: len(head)] = head
        self.table[6] = libc("sched_yield")
        private = [b.role == "private" for b in program.buffers]
        bases = [self.scratch.ctypes.data if p else base_address for p in private]
        self.table[16:] = [base + o for base, o in zip(bases, plan.offsets, strict=True)]

    def memory(self, buffer: Buffer) -> np.ndarray:
        """A buffer's own part, as it lies; of nodes, all slots."""
        at = self.offsets[self.program.buffers.index(buffer)]
        flat = self.arena[at : at + buffer_bytes(buffer, self.count)].view(buffer.type.dtype.storage)
        if buffer.role == "nodes":
            return flat.reshape(-1, buffer.fixed)
        return flat.reshape([-1 if i == 0 and buffer.per_shard else d.size for i, d in enumerate(buffer.layout)])

    def write(self, buffer: Buffer, value: np.ndarray) -> None:
        self.memory(buffer)[...] = self.part(buffer, to_storage(np.asarray(value), buffer.type.dtype))

    def read(self, buffer: Buffer) -> np.ndarray:
        """The own part, axes as in `layout`."""
        found = self.memory(buffer)
        if buffer.role == "nodes":
            found = found[0].reshape([d.size for d in buffer.layout])
        return to_compute(found.copy(), buffer.type.dtype)

    def part(self, buffer: Buffer, value: np.ndarray) -> np.ndarray:
        """What a role of this share holds of a whole value (axes as in the type)."""
        names = buffer.type.names
        value = value.transpose([names.index(d.name) for d in buffer.layout])
        if not buffer.per_shard:
            return value
        rows = buffer.layout[0].size // self.shards
        return value[self.first * rows : (self.first + self.count) * rows]


def run_steps(steps: Sequence[dict[str, Any]], roles: Sequence[Role], team: Runner) -> int:
    """Run the steps of a program's record on roles in turn; what a guard returned, or 0."""
    for step in steps:
        if step["kind"] == "segment":
            for role in roles:
                stopped = team.run(step["symbol"], role)
                if stopped:
                    return stopped
        elif step["kind"] == "exchange":
            for number, kind in zip(step["buffers"], step["kinds"], strict=True):
                exchange(roles, roles[0].program.buffers[number], kind)
        else:
            indices = range(step["count"])
            for i in reversed(indices) if step["reverse"] else indices:
                for role in roles:
                    role.table[8 + step["index"]] = i
                stopped = run_steps(step["steps"], roles, team)
                if stopped:
                    return stopped
    return 0


def exchange(roles: Sequence[Role], buffer: Buffer, kind: str) -> None:
    """Gather every role's subtrees, put them together by the tree, and give everybody the root."""
    parts: dict[tuple[int, int], np.ndarray] = {}
    shards = roles[0].shards
    for role in roles:
        slots = role.memory(buffer)
        for slot, span in enumerate(subtrees(shards, role.first, role.count)):
            parts[span] = to_compute(slots[slot].copy(), buffer.type.dtype)
    oracle, dtype = Oracle(), buffer.type.dtype
    body: Callable[..., Any] = {"sum": oracle.add, "max": oracle.maximum, "min": oracle.minimum}[kind]

    def node(start: int, stop: int) -> np.ndarray:
        if (start, stop) in parts:
            return parts[start, stop]
        middle = start + split(stop - start)
        return body(Lanes(node(start, middle), dtype), Lanes(node(middle, stop), dtype)).array

    root = to_storage(node(0, shards), dtype)
    for role in roles:
        role.memory(buffer)[0] = root
