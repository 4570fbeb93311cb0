"""A GPU kernel's source as functions in C.

    for e1 in range(thread, 4096, threads):        for (long e1 = thread; e1 < 4096; e1 += threads) {
        q1 = div(e1, 64)                   →           const long q1 = (ulong)e1 / 64;
        y[e1] = x[q1] * f32(0.5)                       y[e1] = x[q1] * 0.5f;

`NAME_thread` is the source, line by line, and has its names; `NAME` is launched and gives it its pointers. Integers are
computed as unsigned where they may wrap, for in C signed ones may not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from typing import Any

from numba.core import types

from alphac.backends.c import expressions, soft64
from alphac.backends.c.expressions import ATOM, OTHER, Text, element_name, larger, literal, plain, type_name
from alphac.backends.c.forms import FORMS, convert
from alphac.backends.c.functions import function
from alphac.backends.c.language import Language
from alphac.backends.dialect import Reader, Value, stored_type
from alphac.backends.gpu.frame import MANY
from alphac.backends.target import KernelSource
from alphac.backends.vector import Allocation, Memory
from alphac.ir.errors import InternalError

# Names that C, C++ or one of the languages has for itself.
_WORDS = frozenset(
    re.findall(
        r"\w+",
        """alignas alignof and asm atomic auto bool break case catch char class complex const constant
        constexpr continue decltype default delete device do double else enum event event_t explicit export
        extern false float for friend global goto half if image imaginary in inline int kernel local long
        main mutable namespace new not NULL nullptr operator or private protected public pipe quad read_only
        read_write register restrict return sampler sampler_t shared short signed size_t sizeof static
        struct switch template texture this thread threadgroup throw true try typedef typename uchar uint
        ulong union unsigned ushort using vec vertex fragment virtual void volatile while write_only xor
        memory given own_group local_number block_number block_count NAN INFINITY""",
    )
)
_TYPES = re.compile(r"(u?(char|short|int|long)|float|double|half|bool|packed_\w+)\d*(x\d+)?|as_\w+|__\w*")
_HELPERS = re.compile(r"(minimum|maximum|floordiv|mod)_\w+|\w+_to_\w+")


def written(sources: Iterable[KernelSource], language: Language) -> str:
    """The text of all kernels. Raises InternalError if one of them has no form in C."""
    functions: dict[str, str] = {}
    kernels = [Printer(source, language, functions).text() for source in sources]
    text = "\n".join([*functions.values(), *kernels])
    if not re.search(r"\bdouble\b", text):
        return f"{language.header}\n{text}"
    return language.header + (soft64.softened(text) if language.soft else f"{language.double}\n{text}")


class Printer(Reader):
    """One kernel in the making. `functions` collects what it calls."""

    def __init__(self, source: KernelSource, language: Language, functions: dict[str, str]) -> None:
        super().__init__(source)
        self.language, self.functions = language, functions
        self.out: list[str] = []
        self.depth = 1
        self.declared: list[str] = []
        self.stored: set[str] = set()
        self.fresh = 0
        self.names: dict[str, str] = {}
        for name in [*self.parameters, *self.assigned]:
            self.names[name] = self._unused(name)
        for i, name in enumerate(self.parameters):
            kind: Any = types.int64
            if i < len(source.parameters):
                kind = Memory(stored_type(source.parameters[i]), 0, 1)
            self.values[name] = Value(kind, Text(self.names[name], most=MANY))
        self.pointers = dict.fromkeys(self.parameters[: len(source.parameters)], "")
        self.merges = self.parameters[-1]

    @property
    def tile(self) -> tuple[int, int]:
        """How many rows and columns of a contraction's tile a thread has."""
        sides: Any = self.source.namespace["tile_sides"]
        return sides

    def text(self) -> str:
        """The function of a thread, and the one that is launched."""
        self.statements(self.definition.body)
        kinds = [element_name(stored_type(p)) for p in self.source.parameters]
        parameters = [self._pointer(kind, self.pointers[p] or p) for kind, p in zip(kinds, self.pointers, strict=True)]
        parameters += [f"const long {self.names[p]}" for p in self.parameters[len(kinds) : -1]]
        parameters += [self._pointer("long", self.names[self.merges]), *self.language.tail(self.source)]
        described = ast.get_docstring(self.definition) or ""
        head = f"// {described}\nstatic void {self.source.name}_thread(\n    " + ",\n    ".join(parameters) + ") {\n"
        body = "\n".join([*(f"    {line}" for line in self.declared), *self.out])
        return f"{head}{body}\n}}\n\n{self.language.entry(self.source, kinds)}"

    def _pointer(self, kind: str, name: str) -> str:
        const = "" if name in self.stored else "const "
        return f"{self.language.everywhere} {const}{kind}* {self.language.restrict} {name}"

    # ------------------------------------------------------------------ lines
    def line(self, text: str) -> None:
        self.out.append("    " * self.depth + text)

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.line(line)

    def _block(self, header: str, body: Callable[[], None]) -> None:
        self.line(f"{header} {{")
        self.depth += 1
        body()
        self.depth -= 1
        self.line("}")

    def function(self, name: str, kind: Any, source: Any = None) -> str:
        """The name of a function that the text then has."""
        called, text = function(name, kind, self.language, source)
        self.functions[called] = text
        return called

    # ------------------------------------------------------------------ variables and memory
    def constant(self, number: float | int, kind: Any) -> Text:
        return literal(number, kind)

    def named(self, name: str, value: Value) -> Value:
        called = Text(self.names[name])
        if isinstance(value.type, Memory):
            self._array(name, value)
        else:
            self.line(f"const {type_name(value.type)} {called} = {value.code};")
            called = Text(called.text, most=value.code.most)
        return Value(value.type, called)

    def _array(self, name: str, value: Value) -> None:
        """A buffer's name is that of its parameter; an array of this kernel's own is declared."""
        kind, called, code = element_name(value.type.dtype), self.names[name], value.code
        if isinstance(code, Text):
            for parameter in (*self.pointers, self.merges):
                if code.text == self.names[parameter]:
                    if parameter == self.merges:
                        self.names[parameter] = called
                    else:
                        self.pointers[parameter] = called
                    return
            raise InternalError(f"kernel `{self.source.name}` computes an address", self.source.source)
        place, number = code
        if place == "local":
            self.declared.append(f"{kind} {called}[{number}] {self.language.aligned};")
        else:
            there = f"{self.language.block} {kind}*"
            self.line(f"{there} const {called} = ({there})(shared + {number});")

    def place(self, name: str, kind: Any) -> Text:
        self.declared.append(f"{type_name(kind)} {self.names[name]};")
        return Text(self.names[name])

    def fetch(self, place: Text) -> Text:
        return place

    def keep(self, place: Text, code: Text) -> None:
        self.line(f"{place} = {code};")

    def load(self, memory: Value, index: Text) -> Text:
        element = Text(f"{memory.code}[{index}]")
        return Text(f"{element} != 0", OTHER) if isinstance(memory.type.dtype, types.Boolean) else element

    def store(self, memory: Value, index: Text, element: Text) -> None:
        self.stored.add(memory.code.text)
        self.line(f"{memory.code}[{index}] = {element};")

    def at(self, base: Value, kind: Memory) -> Text:
        return base.code

    def allocated(self, name: str, made: Allocation, kind: Memory, number: int) -> tuple[str, int]:
        return name, number

    # ------------------------------------------------------------------ operations
    def arithmetic(self, sign: str, x: Value, y: Value) -> Text | None:
        real = isinstance(x.type, types.Float)
        if sign not in "+-*/" if real else sign not in "+-*&|^":
            return None
        return expressions.infix(sign, x.code, y.code, x.type)

    def compared(self, sign: str, x: Value, y: Value) -> Text:
        return expressions.compared(sign, x.code, y.code, x.type)

    def inverted(self, truth: Text) -> Text:
        return Text(f"!{truth.within(expressions.UNARY)}", expressions.UNARY)

    def chosen(self, test: Text, x: Value, y: Value) -> Text:
        return expressions.chosen(test, x.code, y.code, x.type)

    def converted(self, value: Value, to: Any) -> Text:
        return convert(self.function, value, to)

    def called(self, name: str, function: Any, given: list[Value]) -> Value:
        form = FORMS.get(name)
        if form is None:
            raise InternalError(f"kernel `{self.source.name}`: `{name}` has no form in C", self.source.source)
        described, _ = function._defn(None, *(a.type for a in given))
        return Value(described.return_type, form(self, given, described.return_type))

    # ------------------------------------------------------------------ branches and loops
    def branch(self, test: Text, body: Callable[[], None], otherwise: Callable[[], None] | None) -> None:
        self._block(f"if ({test})", body)
        if otherwise is not None:
            self._block("else", otherwise)

    def repeat(self, test: Callable[[], Text], body: Callable[[], None]) -> None:
        self._block(f"while ({test()})", body)

    def loop(self, statement: ast.For, bounds: tuple[Text, Text, Text], body: Callable[[Text], None]) -> None:
        start, stop, step = bounds
        assert isinstance(statement.target, ast.Name)
        name = statement.target.id
        index = self.names[name] if self.assigned[name] == 1 else self._fresh("turn")
        most = larger(start, stop)
        stop, step = self._settled(stop), self._settled(step)
        grow = f"++{index}" if step.text == "1" else f"{index} += {step}"
        self._block(f"for (long {index} = {start}; {index} < {stop}; {grow})", lambda: body(Text(index, most=most)))

    def _settled(self, bound: Text) -> Text:
        """A bound that stays as it is while the loop runs."""
        places = {place.text for _, place in self.places.values()}
        if bound.binds == ATOM and re.fullmatch(r"\w+", bound.text) and bound.text not in places:
            return bound
        name = self._fresh("end")
        self.line(f"const long {name} = {plain(bound, types.int64)};")
        return Text(name)

    def _fresh(self, prefix: str) -> str:
        self.fresh += 1
        return self._unused(f"{prefix}_{self.fresh}")

    def _unused(self, name: str) -> str:
        """The name, longer if it is taken."""
        own = self.names.values()
        while name in own or name in _WORDS or _TYPES.fullmatch(name) or _HELPERS.fullmatch(name):
            name += "_"
        return name
