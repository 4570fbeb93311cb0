"""The dialect of kernels' sources, read once, in order: what a variable's type is, what an operator and a call mean.

    t1 = x[e1]              a variable has the type of the first value it is given
    t2 = t1 * f32(0.5)      operands have one type; an integer literal takes the other operand's
    for e1 in range(n):     also range(a, b) and range(a, b, step) with step > 0

`Reader` says what is to be made; a subclass makes it: LLVM IR (translate.py) or text in C (c/printer.py). Types are
Numba's.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import from_dtype

from alphac.backends.target import KernelSource
from alphac.backends.vector import Allocation, Memory
from alphac.ir.errors import InternalError
from alphac.ir.typesys import DType

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
}
_FOLDED: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
}
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


@dataclass(frozen=True)
class Value:
    """A value and its Numba type; `code` is None for a number that is known, in `number`, and takes any type."""

    type: Any
    code: Any
    number: float | int | None = None


class Reader(ABC):
    """One function in the making. Variables that are assigned once are values; others are places."""

    def __init__(self, source: KernelSource) -> None:
        (definition,) = ast.parse(source.source).body
        assert isinstance(definition, ast.FunctionDef)
        self.source, self.definition = source, definition
        self.values: dict[str, Value] = {}
        self.places: dict[str, tuple[Any, Any]] = {}
        self.parameters = [a.arg for a in definition.args.args]
        names = [n for n in ast.walk(definition) if isinstance(n, ast.Name)]
        self.assigned = Counter(n.id for n in names if isinstance(n.ctx, ast.Store))
        self.read = {n.id for n in names if isinstance(n.ctx, ast.Load)}

    # ------------------------------------------------------------------ what a subclass makes
    @abstractmethod
    def constant(self, number: float | int, kind: Any) -> Any:
        """A number as a constant of a type, rounded or wrapped to it."""

    @abstractmethod
    def named(self, name: str, value: Value) -> Value:
        """The value of a variable that is assigned once."""

    @abstractmethod
    def place(self, name: str, kind: Any) -> Any:
        """A place for a variable that is assigned more than once."""

    @abstractmethod
    def fetch(self, place: Any) -> Any:
        """What a place holds."""

    @abstractmethod
    def keep(self, place: Any, code: Any) -> None:
        """Put a value into a place."""

    @abstractmethod
    def load(self, memory: Value, index: Any) -> Any: ...

    @abstractmethod
    def store(self, memory: Value, index: Any, element: Any) -> None: ...

    @abstractmethod
    def arithmetic(self, sign: str, x: Value, y: Value) -> Any:
        """`x sign y`, of one type; integers wrap. None if there is no such operation."""

    @abstractmethod
    def compared(self, sign: str, x: Value, y: Value) -> Any: ...

    @abstractmethod
    def inverted(self, truth: Any) -> Any:
        """Not."""

    @abstractmethod
    def chosen(self, test: Any, x: Value, y: Value) -> Any: ...

    @abstractmethod
    def converted(self, value: Value, to: Any) -> Any:
        """A value as another dtype: as `vector.cast` says."""

    @abstractmethod
    def at(self, base: Value, kind: Memory) -> Any:
        """Memory at a pointer or an address."""

    @abstractmethod
    def allocated(self, name: str, made: Allocation, kind: Memory, number: int) -> Any:
        """Memory that the function has of its own."""

    @abstractmethod
    def called(self, name: str, function: Any, given: list[Value]) -> Value:
        """What an intrinsic gives."""

    @abstractmethod
    def branch(self, test: Any, body: Callable[[], None], otherwise: Callable[[], None] | None) -> None: ...

    @abstractmethod
    def repeat(self, test: Callable[[], Any], body: Callable[[], None]) -> None:
        """While the test holds."""

    @abstractmethod
    def loop(self, statement: ast.For, bounds: tuple[Any, Any, Any], body: Callable[[Any], None]) -> None:
        """Run `body(index)` for the indices of range(*bounds)."""

    # ------------------------------------------------------------------ statements
    def statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.Pass):
                continue
            method = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if method is None:
                raise self.outside(statement)
            method(statement)

    def outside(self, node: ast.AST) -> InternalError:
        """The error of what is not in the dialect."""
        text = ast.unparse(node)
        return InternalError(f"kernel `{self.source.name}`: `{text}` is not in the dialect", self.source.source)

    def _expr(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):  # a docstring
            self.value(statement.value)

    def _assign(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        self._put(target, self.value(statement.value))

    def _augassign(self, statement: ast.AugAssign) -> None:
        self._put(statement.target, self._binary(statement.op, self._read(statement.target), statement.value))

    def _read(self, target: ast.expr) -> Value:
        return self._name(target.id) if isinstance(target, ast.Name) else self.value(target)

    def _put(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Subscript):
            memory = self.value(target.value)
            index = self.typed(self.value(target.slice), types.int64)
            self.store(memory, index.code, self.typed(value, memory.type.dtype).code)
            return
        assert isinstance(target, ast.Name)
        if self.assigned[target.id] == 1:
            self.values[target.id] = self.named(target.id, self.typed(value) if value.code is None else value)
            return
        if target.id not in self.places:
            first = self.typed(value) if value.code is None else value
            self.places[target.id] = (first.type, self.place(target.id, first.type))
        kind, place = self.places[target.id]
        self.keep(place, self.typed(value, kind).code)

    def _if(self, statement: ast.If) -> None:
        otherwise = (lambda: self.statements(statement.orelse)) if statement.orelse else None
        self.branch(self.value(statement.test).code, lambda: self.statements(statement.body), otherwise)

    def _while(self, statement: ast.While) -> None:
        self.repeat(lambda: self.value(statement.test).code, lambda: self.statements(statement.body))

    def _for(self, statement: ast.For) -> None:
        target, call = statement.target, statement.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"):
            raise self.outside(statement.iter)
        bounds = [self.typed(self.value(a), types.int64).code for a in call.args]
        start, stop = (self.constant(0, types.int64), bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) == 3 else self.constant(1, types.int64)
        assert isinstance(target, ast.Name)

        def body(index: Any) -> None:
            if self.assigned[target.id] == 1:
                self.values[target.id] = Value(types.int64, index)
            elif target.id in self.read:
                self._put(target, Value(types.int64, index))
            self.statements(statement.body)

        self.loop(statement, (start, stop, step), body)

    # ------------------------------------------------------------------ expressions
    def value(self, node: ast.expr) -> Value:
        """The value of an expression, computed here."""
        match node:
            case ast.Name(id=name):
                return self._name(name)
            case ast.Constant(value=bool(truth)):
                return Value(types.boolean, self.constant(truth, types.boolean))
            case ast.Constant(value=int(number) | float(number)):
                return Value(None, None, number)
            case ast.BinOp(left=left, op=operator, right=right):
                return self._binary(operator, self.value(left), right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                x = self.value(operand)
                if x.number is not None:
                    return Value(None, None, -x.number)
                return Value(x.type, self.arithmetic("-", self.typed(Value(None, None, 0), x.type), x))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Value(types.boolean, self.inverted(self.value(operand).code))
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                x, y = self._same(self.value(left), self.value(right))
                return Value(types.boolean, self.compared(_COMPARED[type(operator)], x, y))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                x, y = self._same(self.value(body), self.value(orelse))
                return Value(x.type, self.chosen(self.value(test).code, x, y))
            case ast.Subscript(value=place, slice=index):
                memory, at = self.value(place), self.typed(self.value(index), types.int64)
                return Value(memory.type.dtype, self.load(memory, at.code))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._call(name, [self.value(a) for a in arguments])
            case _:
                raise self.outside(node)

    def _name(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        if name in self.places:
            kind, place = self.places[name]
            return Value(kind, self.fetch(place))
        found = self.source.namespace.get(name)
        if isinstance(found, float):
            return Value(None, None, found)
        if isinstance(found, type):
            return Value(types.NumberClass(_number_type(found)), None)
        raise InternalError(f"kernel `{self.source.name}` reads `{name}` before it is set", self.source.source)

    def typed(self, value: Value, wanted: Any = types.int64) -> Value:
        """A number as a constant of the wanted type; any other value must have it."""
        if value.number is not None:
            return Value(wanted, self.constant(value.number, wanted))
        if value.type != wanted:
            raise InternalError(
                f"kernel `{self.source.name}`: {value.type} where {wanted} is wanted", self.source.source
            )
        return value

    def _same(self, x: Value, y: Value) -> tuple[Value, Value]:
        """Two values of one type."""
        if x.number is not None:
            y = self.typed(y) if y.number is not None else y
            return self.typed(x, y.type), y
        return x, self.typed(y, x.type)

    def _binary(self, operator: ast.operator, left: Value, right: ast.expr) -> Value:
        other, sign = self.value(right), OPERATORS.get(type(operator), "")
        if left.number is not None and other.number is not None and sign in _FOLDED:
            return Value(None, None, _FOLDED[sign](left.number, other.number))
        x, y = self._same(left, other)
        code = self.arithmetic(sign, x, y)
        if code is None:
            raise self.outside(right)
        return Value(x.type, code)

    def _call(self, name: str, arguments: list[Value]) -> Value:
        function = self.source.namespace.get(name)
        if function is None:
            raise InternalError(f"kernel `{self.source.name}` calls `{name}`, which is nothing", self.source.source)
        if isinstance(function, type):
            value, to = arguments[0], _number_type(function)
            return self.typed(value, to) if value.number is not None else Value(to, self.converted(value, to))
        if name == "memory":
            base, *described = arguments
            kind = _described(*described)
            return Value(kind, self.at(base, kind))
        if isinstance(function, Allocation):
            number, *described = arguments
            kind = _described(*described)
            assert isinstance(number.number, int)
            return Value(kind, self.allocated(name, function, kind, number.number))
        return self.called(name, function, [self.typed(a) if a.number is not None else a for a in arguments])


def _described(dtype: Value, scope: Value, scopes: Value) -> Memory:
    return Memory(dtype.type.instance_type, scope.number, scopes.number)  # pyright: ignore[reportArgumentType]


def stored_type(dtype: DType) -> Any:
    """The type of a buffer's elements."""
    return types.boolean if dtype.kind == "bool" else from_dtype(dtype.storage)


def _number_type(kind: type) -> Any:
    return types.boolean if kind is np.bool_ else from_dtype(np.dtype(kind))


def represented(number: float | int, kind: Any) -> float | int:
    """A float as it is rounded to a type, an integer wrapped to its width, as if unsigned."""
    if isinstance(kind, types.Float):
        return float(np.float32(number)) if kind.bitwidth == 32 else float(number)
    width: int = getattr(kind, "bitwidth", 64)  # of bool, none
    return int(number) & ((1 << width) - 1)
