"""A kernel's source to LLVM IR.

The source is Python that Numba takes too; its dialect (dialect.py) is so small that types follow from reading it once,
in order, and a whole kernel takes a tenth of the time that Numba's pipeline takes. The same intrinsics (vector.py,
simd.py) generate the code in both. tests/test_translate.py compiles kernels both ways.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from alphac.backends.dialect import Reader, Value, represented, stored_type
from alphac.backends.target import KernelSource
from alphac.backends.vector import (
    I64,
    POINTER,
    Allocation,
    Memory,
    cast_value,
    llvm_type,
    load_element,
    store_element,
)

_BINARY = {  # of floats and of integers
    "+": ("fadd", "add"),
    "-": ("fsub", "sub"),
    "*": ("fmul", "mul"),
    "/": ("fdiv", ""),
    "&": ("", "and_"),
    "|": ("", "or_"),
    "^": ("", "xor"),
}
WHOLE = 8  # turns: a vector of most targets
ROLLED = "llvm.loop.unroll.disable"
UNROLLING = f'!{{ !"{ROLLED}" }}'


def translate(source: KernelSource) -> str:
    """A module that defines `void NAME(pointers…, integers…)`. Buffers of a kernel never overlap: `noalias` tells LLVM.
    Raises InternalError if the source is not in the dialect."""
    text = str(_Translation(source).module())
    return re.sub(rf'^(!\d+) = !{{ !"{ROLLED}" }}$', rf"\1 = distinct !{{ \1, {UNROLLING} }}", text, flags=re.MULTILINE)


def _meets(statement: ast.For) -> bool:
    """Whether a GPU's threads meet within a loop. What they do between two barriers is much already, and unrolled it
    would want too many registers."""
    return any(isinstance(node, ast.Name) and node.id == "barrier" for node in ast.walk(statement))


class _Context:
    """What intrinsics ask of Numba's target context."""

    def get_dummy_value(self) -> ir.Constant:
        """The result of what has none."""
        return ir.Constant(POINTER, None)


class _Translation(Reader):
    """One function in the making. Places are memory that LLVM promotes to registers."""

    def module(self) -> ir.Module:
        """The module with the function."""
        module = ir.Module(self.source.name)
        pointers = len(self.source.parameters)
        integers = self.source.loops + self.source.integers
        made = ir.FunctionType(ir.VoidType(), [POINTER] * pointers + [I64] * integers)
        function = ir.Function(module, made, self.source.name)
        self.entry = ir.IRBuilder(function.append_basic_block("entry"))
        self.b: Any = ir.IRBuilder(function.append_basic_block("body"))
        for i, (name, argument) in enumerate(zip(self.parameters, function.args, strict=True)):
            kind: Any = types.int64
            if i < pointers:
                argument.add_attribute("noalias")
                kind = Memory(stored_type(self.source.parameters[i]), 0, 1)
            self.values[name] = Value(kind, argument)
        body = self.b.block
        self.statements(self.definition.body)
        self.b.ret_void()
        self.entry.branch(body)
        return module

    # ------------------------------------------------------------------ variables and memory
    def constant(self, number: float | int, kind: Any) -> Any:
        number = float(number) if isinstance(kind, types.Float) else number
        return ir.Constant(llvm_type(kind), represented(number, kind))

    def named(self, name: str, value: Value) -> Value:
        return value

    def place(self, name: str, kind: Any) -> Any:
        return self.entry.alloca(llvm_type(kind), name=name)

    def fetch(self, place: Any) -> Any:
        return self.b.load(place)

    def keep(self, place: Any, code: Any) -> None:
        self.b.store(code, place)

    def load(self, memory: Value, index: Any) -> Any:
        return load_element(self.b, memory.code, index, memory.type)

    def store(self, memory: Value, index: Any, element: Any) -> None:
        store_element(self.b, memory.code, index, element, memory.type)

    def at(self, base: Value, kind: Memory) -> Any:
        return self.b.inttoptr(base.code, POINTER) if base.type == types.int64 else base.code

    def allocated(self, name: str, made: Allocation, kind: Memory, number: int) -> Any:
        return made.generate(self.entry, kind, number)

    # ------------------------------------------------------------------ operations
    def arithmetic(self, sign: str, x: Value, y: Value) -> Any:
        name = _BINARY.get(sign, ("", ""))[not isinstance(x.type, types.Float)]
        return getattr(self.b, name)(x.code, y.code) if name else None

    def compared(self, sign: str, x: Value, y: Value) -> Any:
        if isinstance(x.type, types.Float):
            compare = self.b.fcmp_unordered if sign == "!=" else self.b.fcmp_ordered
        else:
            compare = self.b.icmp_signed if getattr(x.type, "signed", False) else self.b.icmp_unsigned
        return compare(sign, x.code, y.code)

    def inverted(self, truth: Any) -> Any:
        return self.b.not_(truth)

    def chosen(self, test: Any, x: Value, y: Value) -> Any:
        return self.b.select(test, x.code, y.code)

    def converted(self, value: Value, to: Any) -> Any:
        return cast_value(self.b, value.code, value.type, to)

    def called(self, name: str, function: Any, given: list[Value]) -> Value:
        described, generate = function._defn(None, *(a.type for a in given))
        return Value(described.return_type, generate(_Context(), self.b, described, [a.code for a in given]))

    # ------------------------------------------------------------------ branches and loops
    def branch(self, test: Any, body: Callable[[], None], otherwise: Callable[[], None] | None) -> None:
        if otherwise is None:
            with self.b.if_then(test):
                body()
            return
        with self.b.if_else(test) as (then, else_):
            with then:
                body()
            with else_:
                otherwise()

    def repeat(self, test: Callable[[], Any], body: Callable[[], None]) -> None:
        b = self.b
        before, inside, after = (b.append_basic_block(n) for n in ("while", "do", "done"))
        b.branch(before)
        b.position_at_end(before)
        b.cbranch(test(), inside, after)
        b.position_at_end(inside)
        body()
        b.branch(before)
        b.position_at_end(after)

    def loop(self, statement: ast.For, bounds: tuple[Any, Any, Any], body: Callable[[Any], None]) -> None:
        """A loop that is entered if it has a turn, so that its test stands at its end."""
        b, (start, stop, step) = self.b, bounds
        before = b.block
        inside, after = b.append_basic_block("for"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", start, stop), inside, after)
        b.position_at_end(inside)
        index = b.phi(I64)
        index.add_incoming(start, before)
        body(index)
        following = b.add(index, step, flags=("nsw",))
        index.add_incoming(following, b.block)
        latch = b.cbranch(b.icmp_signed("<", following, stop), inside, after)
        if self._is_vector_loop(statement, start, stop) or _meets(statement):
            latch.set_metadata("llvm.loop", b.module.add_metadata([ROLLED]))
        b.position_at_end(after)

    def _is_vector_loop(self, statement: ast.For, start: Any, stop: Any) -> bool:
        """Whether a loop is to be vectorized: it stores whole vectors and nothing is inside it. LLVM would rather
        unroll it, if it has few turns, and vectorize the loop around it, whose elements are far apart."""
        simple = all(isinstance(s, ast.Assign) for s in statement.body)
        stores = any(isinstance(t, ast.Subscript) for s in statement.body for t in getattr(s, "targets", ()))
        known = isinstance(start, ir.Constant) and isinstance(stop, ir.Constant)
        return simple and stores and known and (stop.constant - start.constant) % WHOLE == 0
