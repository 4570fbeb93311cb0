"""A kernel's source to LLVM IR.

The source is Python that Numba takes too; its dialect is so small (one type per variable, loops over ranges, calls of
intrinsics) that types follow from reading it once, in order, and a whole kernel takes a tenth of the time that Numba's
pipeline takes. The same intrinsics (vector.py, simd.py) generate the code in both. tests/test_translate.py compiles
kernels both ways.

    t1 = x[e1]              a variable has the type of the first value it is given
    t2 = t1 * f32(0.5)      operands have one type; an integer literal takes the other operand's
    for e1 in range(n):     also range(a, b) and range(a, b, step) with step > 0
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.np.numpy_support import from_dtype

from alphac.backends.target import KernelSource
from alphac.backends.vector import (
    I1,
    I64,
    POINTER,
    Allocation,
    Memory,
    cast_value,
    llvm_type,
    load_element,
    store_element,
)
from alphac.ir.errors import InternalError
from alphac.ir.typesys import DType

_BINARY: dict[type[ast.operator], tuple[str, str]] = {  # of floats and of integers
    ast.Add: ("fadd", "add"),
    ast.Sub: ("fsub", "sub"),
    ast.Mult: ("fmul", "mul"),
    ast.Div: ("fdiv", ""),
    ast.BitAnd: ("", "and_"),
    ast.BitOr: ("", "or_"),
    ast.BitXor: ("", "xor"),
}
_FOLDED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
    ast.BitAnd: lambda x, y: x & y,
    ast.BitOr: lambda x, y: x | y,
    ast.BitXor: lambda x, y: x ^ y,
}
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


WHOLE = 8  # turns: a vector of most targets
ROLLED = "llvm.loop.unroll.disable"
UNROLLING = f'!{{ !"{ROLLED}" }}'


def translate(source: KernelSource) -> str:
    """A module that defines `void NAME(pointers…, integers…)`. Buffers of a kernel never overlap: `noalias` tells LLVM.
    Raises InternalError if the source is not in the dialect."""
    (definition,) = ast.parse(source.source).body
    assert isinstance(definition, ast.FunctionDef)
    text = str(_Translation(source, definition).module())
    return re.sub(rf'^(!\d+) = !{{ !"{ROLLED}" }}$', rf"\1 = distinct !{{ \1, {UNROLLING} }}", text, flags=re.MULTILINE)


def _meets(statement: ast.For) -> bool:
    """Whether a GPU's threads meet within a loop. What they do between two barriers is much already, and unrolled it
    would want too many registers."""
    return any(isinstance(node, ast.Name) and node.id == "barrier" for node in ast.walk(statement))


@dataclass(frozen=True)
class _Value:
    """A value and its Numba type; `code` is None for a number that is known, in `number`, and takes any type."""

    type: Any
    code: Any
    number: float | int | None = None


class _Context:
    """What intrinsics ask of Numba's target context."""

    def get_dummy_value(self) -> ir.Constant:
        """The result of what has none."""
        return ir.Constant(POINTER, None)


@dataclass
class _Translation:
    """One function in the making. Variables that are assigned once are values; others are memory that LLVM promotes to
    registers."""

    source: KernelSource
    definition: ast.FunctionDef
    values: dict[str, _Value] = field(default_factory=dict[str, _Value])
    places: dict[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])

    def module(self) -> ir.Module:
        """The module with the function."""
        module = ir.Module(self.source.name)
        pointers = len(self.source.parameters)
        integers = self.source.loops + self.source.integers
        made = ir.FunctionType(ir.VoidType(), [POINTER] * pointers + [I64] * integers)
        function = ir.Function(module, made, self.source.name)
        self.entry = ir.IRBuilder(function.append_basic_block("entry"))
        self.b: Any = ir.IRBuilder(function.append_basic_block("body"))
        names = [a.arg for a in self.definition.args.args]
        for i, (name, argument) in enumerate(zip(names, function.args, strict=True)):
            kind: Any = types.int64
            if i < pointers:
                argument.add_attribute("noalias")
                kind = Memory(_stored_type(self.source.parameters[i]), 0, 1)
            self.values[name] = _Value(kind, argument)
        self.assigned = Counter(
            n.id for n in ast.walk(self.definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )
        self.body = self.b.block
        self.statements(self.definition.body)
        self.b.ret_void()
        self.entry.branch(self.body)
        return module

    # ------------------------------------------------------------------ statements
    def statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            method = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if method is None:
                raise self._outside(statement)
            method(statement)

    def _outside(self, node: ast.AST) -> InternalError:
        text = ast.unparse(node)
        return InternalError(f"kernel `{self.source.name}`: `{text}` is not in the dialect", self.source.source)

    def _expr(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):  # a docstring
            self.value(statement.value)

    def _pass(self, statement: ast.Pass) -> None: ...

    def _assign(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        self._put(target, self.value(statement.value))

    def _augassign(self, statement: ast.AugAssign) -> None:
        self._put(statement.target, self._binary(statement.op, self._read(statement.target), statement.value))

    def _read(self, target: ast.expr) -> _Value:
        return self._name(target.id) if isinstance(target, ast.Name) else self.value(target)

    def _put(self, target: ast.expr, value: _Value) -> None:
        if isinstance(target, ast.Subscript):
            memory = self.value(target.value)
            index = self._typed(self.value(target.slice), types.int64)
            element = self._typed(value, memory.type.dtype)
            store_element(self.b, memory.code, index.code, element.code, memory.type)
            return
        assert isinstance(target, ast.Name)
        if self.assigned[target.id] == 1:
            self.values[target.id] = self._typed(value) if value.code is None else value
            return
        if target.id not in self.places:
            first = self._typed(value) if value.code is None else value
            self.places[target.id] = (first.type, self.entry.alloca(llvm_type(first.type), name=target.id))
        kind, place = self.places[target.id]
        self.b.store(self._typed(value, kind).code, place)

    def _if(self, statement: ast.If) -> None:
        condition = self.value(statement.test).code
        if not statement.orelse:
            with self.b.if_then(condition):
                self.statements(statement.body)
            return
        with self.b.if_else(condition) as (then, otherwise):
            with then:
                self.statements(statement.body)
            with otherwise:
                self.statements(statement.orelse)

    def _while(self, statement: ast.While) -> None:
        b = self.b
        test, body, after = (b.append_basic_block(n) for n in ("while", "do", "done"))
        b.branch(test)
        b.position_at_end(test)
        b.cbranch(self.value(statement.test).code, body, after)
        b.position_at_end(body)
        self.statements(statement.body)
        b.branch(test)
        b.position_at_end(after)

    def _for(self, statement: ast.For) -> None:
        """A loop that is entered if it has a turn, so that its test stands at its end."""
        b, target, call = self.b, statement.target, statement.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"):
            raise self._outside(statement.iter)
        bounds = [self._typed(self.value(a), types.int64).code for a in call.args]
        start, stop = (I64(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) == 3 else I64(1)
        before = b.block
        body, after = b.append_basic_block("for"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", start, stop), body, after)
        b.position_at_end(body)
        index = b.phi(I64)
        index.add_incoming(start, before)
        assert isinstance(target, ast.Name)
        if self.assigned[target.id] == 1:
            self.values[target.id] = _Value(types.int64, index)
        else:
            self._put(target, _Value(types.int64, index))
        self.statements(statement.body)
        following = b.add(index, step, flags=("nsw",))
        index.add_incoming(following, b.block)
        latch = b.cbranch(b.icmp_signed("<", following, stop), body, after)
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

    # ------------------------------------------------------------------ expressions
    def value(self, node: ast.expr) -> _Value:
        """The value of an expression, computed here."""
        match node:
            case ast.Name(id=name):
                return self._name(name)
            case ast.Constant(value=bool(truth)):
                return _Value(types.boolean, I1(truth))
            case ast.Constant(value=int(number) | float(number)):
                return _Value(None, None, number)
            case ast.BinOp(left=left, op=operator, right=right):
                return self._binary(operator, self.value(left), right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                x = self.value(operand)
                if x.number is not None:
                    return _Value(None, None, -x.number)
                return _Value(x.type, self.b.sub(x.code.type(0), x.code))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _Value(types.boolean, self.b.not_(self.value(operand).code))
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return self._compare(_COMPARED[type(operator)], self.value(left), self.value(right))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                x, y = self._same(self.value(body), self.value(orelse))
                return _Value(x.type, self.b.select(self.value(test).code, x.code, y.code))
            case ast.Subscript(value=place, slice=index):
                memory, at = self.value(place), self._typed(self.value(index), types.int64)
                return _Value(memory.type.dtype, load_element(self.b, memory.code, at.code, memory.type))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._call(name, [self.value(a) for a in arguments])
            case _:
                raise self._outside(node)

    def _name(self, name: str) -> _Value:
        if name in self.values:
            return self.values[name]
        if name in self.places:
            kind, place = self.places[name]
            return _Value(kind, self.b.load(place))
        found = self.source.namespace.get(name)
        if isinstance(found, float):
            return _Value(None, None, found)
        if isinstance(found, type):
            return _Value(types.NumberClass(_number_type(found)), None)
        raise InternalError(f"kernel `{self.source.name}` reads `{name}` before it is set", self.source.source)

    def _typed(self, value: _Value, wanted: Any = types.int64) -> _Value:
        """A number as a constant of the wanted type; any other value must have it."""
        if value.number is not None:
            number = float(value.number) if isinstance(wanted, types.Float) else value.number
            return _Value(wanted, ir.Constant(llvm_type(wanted), _represented(number, wanted)))
        if value.type != wanted:
            raise InternalError(
                f"kernel `{self.source.name}`: {value.type} where {wanted} is wanted", self.source.source
            )
        return value

    def _same(self, x: _Value, y: _Value) -> tuple[_Value, _Value]:
        """Two values of one type."""
        if x.number is not None:
            y = self._typed(y) if y.number is not None else y
            return self._typed(x, y.type), y
        return x, self._typed(y, x.type)

    def _binary(self, operator: ast.operator, left: _Value, right: ast.expr) -> _Value:
        other = self.value(right)
        if left.number is not None and other.number is not None and type(operator) in _FOLDED:
            return _Value(None, None, _FOLDED[type(operator)](left.number, other.number))
        x, y = self._same(left, other)
        name = _BINARY.get(type(operator), ("", ""))[not isinstance(x.type, types.Float)]
        if not name:
            raise self._outside(right)
        return _Value(x.type, getattr(self.b, name)(x.code, y.code))

    def _compare(self, sign: str, left: _Value, right: _Value) -> _Value:
        x, y = self._same(left, right)
        if isinstance(x.type, types.Float):
            compare = self.b.fcmp_unordered if sign == "!=" else self.b.fcmp_ordered
        else:
            compare = self.b.icmp_signed if getattr(x.type, "signed", False) else self.b.icmp_unsigned
        return _Value(types.boolean, compare(sign, x.code, y.code))

    def _call(self, name: str, arguments: list[_Value]) -> _Value:
        function = self.source.namespace.get(name)
        if function is None:
            raise InternalError(f"kernel `{self.source.name}` calls `{name}`, which is nothing", self.source.source)
        if isinstance(function, type):
            return self._converted(arguments[0], _number_type(function))
        if name == "memory":
            return self._memory(*arguments)
        if isinstance(function, Allocation):
            return self._allocated(function, *arguments)
        given = [self._typed(a) if a.number is not None else a for a in arguments]
        defined: Any = function
        described, generate = defined._defn(None, *(a.type for a in given))
        return _Value(described.return_type, generate(_Context(), self.b, described, [a.code for a in given]))

    def _memory(self, base: _Value, dtype: _Value, scope: _Value, scopes: _Value) -> _Value:
        kind = Memory(dtype.type.instance_type, scope.number, scopes.number)
        code = self.b.inttoptr(base.code, POINTER) if base.type == types.int64 else base.code
        return _Value(kind, code)

    def _allocated(self, made: Allocation, number: _Value, dtype: _Value, scope: _Value, scopes: _Value) -> _Value:
        kind = Memory(dtype.type.instance_type, scope.number, scopes.number)
        assert isinstance(number.number, int)
        return _Value(kind, made.generate(self.entry, kind, number.number))

    def _converted(self, value: _Value, to: Any) -> _Value:
        """`f32(…)` and its like: a constant, or a number of another type."""
        if value.number is not None:
            return self._typed(value, to)
        return _Value(to, cast_value(self.b, value.code, value.type, to))


def _stored_type(dtype: DType) -> Any:
    return types.boolean if dtype.kind == "bool" else from_dtype(dtype.storage)


def _number_type(kind: type) -> Any:
    return types.boolean if kind is np.bool_ else from_dtype(np.dtype(kind))


def _represented(number: float | int, kind: Any) -> float | int:
    """What LLVM's text needs: a float as it is rounded, an integer wrapped to its width."""
    if isinstance(kind, types.Float):
        return float(np.float32(number)) if kind.bitwidth == 32 else float(number)
    width: int = getattr(kind, "bitwidth", 64)  # of bool, none
    return int(number) & ((1 << width) - 1)
