"""The names of a whole system: what is declared where, resolved when it is first needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alphac.diagnostics import PRELUDE, Diagnostic, Diagnostics, Label, fail, nearest
from alphac.frontend import tree
from alphac.frontend.parse import parse, read_source
from alphac.frontend.scope import Context, Scope
from alphac.frontend.values import (
    Axes,
    Callee,
    Counter,
    DataReference,
    ElementType,
    StateInfo,
    StateReference,
    describe,
    is_known,
    number,
    type_text,
)
from alphac.ir.core import Data, RegionContract, Value
from alphac.ir.span import Span
from alphac.ir.typesys import LANGUAGE_DTYPES, SHARD, Dim, DType, TensorType

MAXIMAL_ELEMENTS = 1 << 40
PRELUDE_FOLDER = Path(__file__).with_name("prelude")


class System:
    """All declarations of a system and of the prelude, and what elaboration has made of them so far."""

    def __init__(self, root: tree.System, overrides: dict[str, str], directory: Path) -> None:
        self.directory = directory
        self.overrides = overrides
        self.sources: dict[str, str] = {}
        self.declarations: dict[str, tree.Node] = {}
        self.orders: dict[str, int] = {}
        self.statements: list[tree.Node] = []  # those of the system and of `use`d files, in order
        self.prelude: dict[str, tree.Node] = {}
        self.columns_of: dict[str, list[str]] = {}  # column name -> data declarations that have it
        self.states: dict[str, StateInfo] = {}
        self.data: dict[str, Data] = {}
        self.data_parts: dict[str, Any] = {}  # what frontend.columns knows of each data declaration
        self.regions: dict[str, RegionContract] = {}
        self.region_reads: dict[str, set[str]] = {}
        self.problems: list[Diagnostic] = []
        self.grain: Dim | None = None
        self.sites: dict[tree.Call, str] = {}
        self.optimizer_uses: dict[str, int] = {}
        self.orders_of: dict[tree.Node, int] = {}
        self.seed = 0
        self._values: dict[str, Any] = {}
        self._resolving: list[str] = []
        for path in sorted(PRELUDE_FOLDER.glob("*.alpha")):
            for node in _prelude(path):
                assert isinstance(node, tree.Callable)
                self.prelude[node.name] = node
        self._collect(root, [])
        for name in sorted(self.columns_of.keys() & self.declarations.keys()):
            help = "a plain name must stand for one thing: give the column another name"
            self._problem("E105", f"`{name}` is a column of the data too", self.declarations[name].span, help)
        self._find_grain()
        self.scope = Scope(None, "")

    # ------------------------------------------------------------------------------------------------ declarations
    def _collect(self, file: tree.System, chain: list[Path]) -> None:
        """Note a file's declarations, and those of the files it uses."""
        self.sources[file.span.file] = file.source
        for node in file.declarations:
            if isinstance(node, tree.Use):
                self._use(node, Path(file.span.file).parent if chain else self.directory, chain)
                continue
            self.statements.append(node)
            order = len(self.statements)
            self.orders_of[node] = order
            if isinstance(node, tree.Together):
                self.orders_of.update(dict.fromkeys(node.statements, order))
            for name, declaration in _declared(node):
                if name in self.declarations:
                    before = self.declarations[name].span
                    self._problem(
                        "E105", f"`{name}` is declared twice", declaration.span, "give one of them another name",
                        (Label(declaration.span, "again"), Label(before, "first")),
                    )  # fmt: skip
                    continue
                if name == SHARD:
                    self._problem(
                        "E105", f"`{SHARD}` is a name of the compiler's own", declaration.span, "choose another"
                    )
                self.declarations[name] = declaration
                self.orders[name] = order
            if isinstance(node, tree.Data):
                for column in node.columns:
                    self.columns_of.setdefault(column.name, []).append(node.name)

    def _use(self, node: tree.Use, directory: Path, chain: list[Path]) -> None:
        path = directory / node.path
        resolved = path.resolve()
        if resolved in chain:
            raise fail("E107", f"`{node.path}` uses itself", node.span, "move what both need into a third file")
        try:
            text = read_source(path)
        except Diagnostics as error:
            first = error.diagnostics[0]
            message = first.message if first.span else f"`{node.path}` cannot be read"
            raise fail(
                "E107", message, first.span or node.span, "paths are relative to the file that says `use`"
            ) from None
        if str(path) not in self.sources:
            self._collect(parse(text, str(path)), [*chain, resolved])

    def _problem(
        self, code: str, message: str, span: Span | None, help: str = "", labels: tuple[Label, ...] = ()
    ) -> None:
        self.problems.append(Diagnostic(code, message, span, help, labels))

    def one(self, kind: type[tree.Node], words: str) -> Any:
        """The only declaration of its kind, or None."""
        found = [n for n in self.statements if isinstance(n, kind)]
        for extra in found[1:]:
            self._problem("E105", f"a second `{words}`", extra.span, f"a system has one `{words}`")
        return found[0] if found else None

    def state_order(self) -> list[str]:
        """Paths of all states, in order of declaration."""
        return sorted(self.states, key=lambda p: self.states[p].order)

    # ------------------------------------------------------------------------------------------------------- names
    def lookup(self, name: str, span: Span, scope: Scope, context: Context) -> Any:
        """What a global name stands for. Raises E110."""
        if name in self.columns_of and name not in self.declarations:
            from alphac.frontend.columns import reference

            return reference(self, name, span)
        if name in self.declarations:
            return self._global(name, span, context)
        if name in self.prelude:
            node = self.prelude[name]
            assert isinstance(node, tree.Callable)
            return Callee(node)
        raise self.unknown(name, span, scope)

    def unknown(self, name: str, span: Span, scope: Scope) -> Diagnostics:
        """E110, with the nearest name there is."""
        from alphac.frontend.calls import BUILTINS, CONSTANTS

        candidates = [*scope.all_names(), *self.declarations, *self.columns_of, *self.prelude, *BUILTINS, *CONSTANTS]
        near = nearest(name, candidates)
        help = f"did you mean `{near}`?" if near else "declare it, or check the spelling"
        return fail("E110", f"`{name}` is not known here", span, help)

    def _global(self, name: str, span: Span, context: Context) -> Any:
        node = self.declarations[name]
        if isinstance(node, tree.Let):
            return self._let(node, context)
        if name in self._values:
            return self._values[name]
        if name in self._resolving:
            raise fail("E120", f"`{name}` is defined by itself", span, "break the circle")
        self._resolving.append(name)
        try:
            self._values[name] = self._resolve(name, node, context)
        finally:
            self._resolving.pop()
        return self._values[name]

    def _resolve(self, name: str, node: tree.Node, context: Context) -> Any:
        if isinstance(node, tree.DimEntry):
            return self._dim(node, context)
        if isinstance(node, tree.Entry):
            self.declare_global(name, context)
            return StateReference(name)
        if isinstance(node, tree.Data):
            return DataReference(name)
        if isinstance(node, tree.Callable):
            return Callee(node)
        raise AssertionError(node)

    def _let(self, node: tree.Let, context: Context) -> Any:
        """A `let` is its expression, wherever it is used. `--set` replaces it."""
        from alphac.frontend.expressions import evaluate

        if node.name in self.overrides:
            return self._override(node, self.overrides[node.name], context)
        if node.name in self._resolving:
            raise fail("E120", f"`{node.name}` is defined by itself", node.span, "break the circle")
        self._resolving.append(node.name)
        try:
            with context.outside():
                value = evaluate(context, node.value, self.scope)
        finally:
            self._resolving.pop()
        return context.sliced(value, 0) if isinstance(value, Value) else value

    def _override(self, node: tree.Let, text: str, context: Context) -> Any:
        """The value that `--set name=text` gives: of the kind that the file gives."""
        words = text.strip()
        try:
            if words in ("true", "false"):
                value: Any = words == "true"
            else:
                value = int(words) if words.lstrip("+-").isdigit() else float(words)
        except ValueError:
            raise fail(
                "E139", f"`--set {node.name}={text}` is not a number", node.span, "write `--set name=1e-3`"
            ) from None
        del self.overrides[node.name]
        try:
            before = self._let(node, context)
        finally:
            self.overrides[node.name] = text
        if isinstance(before, bool) != isinstance(value, bool) or not isinstance(before, (bool, int, float)):
            raise fail(
                "E139", f"`--set {node.name}={text}` replaces {describe(before)} by {describe(value)}", node.span,
                "only numbers and bools can be set, each by its like",
            )  # fmt: skip
        if isinstance(before, int) and not isinstance(before, bool) and isinstance(value, float):
            if value != int(value):
                raise fail("E139", f"`{node.name}` is a whole number, not {text}", node.span, "set a whole number")
            value = int(value)
        return value

    def check_overrides(self) -> None:
        """Refuse `--set` of what is not a `let`."""
        for name, text in self.overrides.items():
            node = self.declarations.get(name)
            if name == "seed" or isinstance(node, tree.Let):
                continue
            if node is None:
                near = nearest(name, [n for n, d in self.declarations.items() if isinstance(d, tree.Let)])
                help = f"did you mean `{near}`?" if near else "only what the file declares by `let` can be set"
                self._problem("E139", f"`--set {name}={text}`: the system has no `let {name}`", None, help)
            else:
                kinds = {tree.DimEntry: "dim", tree.Entry: "param or state"}
                kind = kinds.get(type(node), type(node).__name__.lower())
                self._problem(
                    "E139", f"`--set {name}={text}`: `{name}` is a {kind}, not a `let`", node.span,
                    "what shapes the system stands in the file alone",
                )  # fmt: skip

    # ------------------------------------------------------------------------------------------------------- dims
    def _dim(self, node: tree.DimEntry, context: Context) -> Dim:
        size = self._size(node.value, context)
        shards = self.grain.shards if self.grain is not None and self.grain.name == node.name else 0
        if shards and size % shards:
            help = f"make `{node.name}` a multiple of {shards}, or the grain a divisor of {size}"
            raise fail("E135", f"`{node.name}` ({size}) is not divisible by the grain {shards}", node.span, help)
        return Dim(node.name, size, shards)

    def _size(self, node: tree.Expression, context: Context) -> int:
        from alphac.frontend.expressions import evaluate

        with context.outside():
            value = evaluate(context, node, self.scope)
        return checked_size(value, node.span)

    def _find_grain(self) -> None:
        node = self.one(tree.Grain, "grain")
        if node is None:
            return
        name = node.dim.id
        if not isinstance(self.declarations.get(name), tree.DimEntry):
            self._problem("E135", f"`{name}` is not a dim", node.dim.span, f"declare it: `dim {name} = 128`")
            return
        self.grain = Dim(name, 1, 0)  # provisional: its size is known once its dim is resolved
        self.scope = Scope(None, "")
        context = Context(self, "grain")
        try:
            shards = self._size(node.shards, context)
            self.grain = Dim(name, 1, shards)
            self.grain = self._global(name, node.dim.span, context)
        except Diagnostics as error:
            self.problems += error.diagnostics
            self.grain = None
            self._values.clear()

    def type(self, node: tree.Type, scope: Scope, context: Context) -> TensorType:
        """A written type as a type."""
        dtype = self._element_type(node, scope, context)
        dims: list[Dim] = []
        for part in node.dims:
            dims += self.dims(part, scope, context)
        names = [d.name for d in dims]
        for name in names:
            if names.count(name) > 1:
                help = f"give one axis another name: `dim other = {name}`"
                raise fail("E118", f"a type names each dim once, and `{name}` stands here twice", node.span, help)
        type = TensorType(dtype, tuple(dims))
        if type.size > MAXIMAL_ELEMENTS:
            message = f"{type_text(type)} has {type.size:,} elements, more than 2^40"
            raise fail("E119", message, node.span, "make a dim smaller")
        return type

    def _element_type(self, node: tree.Type, scope: Scope, context: Context) -> DType:
        """A type's element type: one of the language's, or a name that stands for one."""
        if node.dtype in LANGUAGE_DTYPES:
            return LANGUAGE_DTYPES[node.dtype]
        binding, let = scope.find(node.dtype), self.declarations.get(node.dtype)
        value = binding.value if binding else self._let(let, context) if isinstance(let, tree.Let) else None
        if isinstance(value, ElementType):
            return value.dtype
        near = nearest(node.dtype, LANGUAGE_DTYPES)
        help = f"did you mean `{near}`?" if near else f"there are {', '.join(LANGUAGE_DTYPES)}"
        raise fail("E115", f"`{node.dtype}` is no element type", node.span, help)

    def dims(self, node: tree.Expression, scope: Scope, context: Context) -> tuple[Dim, ...]:
        """An expression where a dim is expected: a dim, axes, or a size, which is its own name."""
        from alphac.frontend.expressions import evaluate

        value = evaluate(context, node, scope)
        if isinstance(value, Dim):
            return (value,)
        if isinstance(value, tuple) and all(isinstance(v, Dim) for v in value):
            return value
        if isinstance(value, (Value, Counter)) or not is_known(value):
            raise fail(
                "E118", f"a dim is expected, not {describe(value)}", node.span, "name a dim or write a whole number"
            )
        size = checked_size(value, node.span)
        return (Dim(self._canonical(node, scope, context), size),)

    def _canonical(self, node: tree.Expression, scope: Scope, context: Context) -> str:
        """The name of a computed dim: `width * 4` and `4 * width` are both `4*width`."""
        from alphac.frontend.expressions import evaluate

        if isinstance(node, tree.Binary) and node.operator in ("*", "+", "-", "/", "//"):
            left, right = self._canonical(node.left, scope, context), self._canonical(node.right, scope, context)
            if node.operator in ("*", "+"):
                parts = sorted(
                    (*left.split(node.operator), *right.split(node.operator)), key=lambda p: (not p.isdigit(), p)
                )
                return node.operator.join(parts)
            return f"{left}{node.operator}{right}"
        value = evaluate(context, node, scope)
        return value.name if isinstance(value, Dim) else str(int(number(value)))

    # ------------------------------------------------------------------------------------------------------ states
    def declare_global(self, path: str, context: Context) -> None:
        """Register a `param` or `state` of the top level."""
        node = self.declarations[path]
        assert isinstance(node, tree.Entry)
        kind = next(s.kind for s in self.statements if isinstance(s, tree.Declare) and node in s.entries)
        if node.type is None:
            raise fail("E114", f"`{path}` has no type", node.span, f"write `{kind} {path}: f32[…] = …`")
        type = self.type(node.type, self.scope, context)
        if type.grain is not None:
            help = "a state outlives the batch: its axes are other dims"
            raise fail("E118", f"`{path}` has the grain's axis `{type.grain.name}`", node.type.span, help)
        entries = [n for s in self.statements if isinstance(s, tree.Declare) for n in s.entries]
        order = (self.orders[path], entries.index(node))
        self.states[path] = StateInfo(path, type, kind, order, node.value, self.scope, node.span)

    def declare(self, info: StateInfo) -> None:
        """Register a state of a block or an optimizer."""
        if info.path not in self.states:
            self.states[info.path] = info

    # -------------------------------------------------------------------------------------------------- call sites
    def number_sites(self, body: tree.Body) -> None:
        """Give every call in a body its name: `layer`, the second one `layer_2`, and so on."""
        counts: dict[str, int] = {}
        for call in _calls(body):
            if isinstance(call.callee, tree.Name) and call not in self.sites:
                name = call.callee.id
                counts[name] = counts.get(name, 0) + 1
                self.sites[call] = name if counts[name] == 1 else f"{name}_{counts[name]}"

    def site(self, call: tree.Call) -> str:
        return self.sites.get(call, "call")


def checked_size(value: Any, span: Span) -> int:
    """A known value as the size of an axis."""
    size = number(value) if is_known(value) else None
    if size is None or isinstance(size, bool):
        raise fail("E118", f"a size is expected, not {describe(value)}", span, "write a whole number")
    if isinstance(size, float):
        if size != size or size != int(size) if abs(size) < 1e300 else True:
            raise fail("E118", f"a size is a whole number, not {size:g}", span, "check the division")
        size = int(size)
    if size <= 0:
        raise fail(
            "E118", f"a size is at least 1, not {size}", span, "an axis without elements holds nothing to learn from"
        )
    if size > MAXIMAL_ELEMENTS:
        raise fail("E119", f"a size of {size:,} is more than 2^40", span, "make it smaller")
    return size


def _declared(node: tree.Node) -> list[tuple[str, tree.Node]]:
    """The global names that a declaration makes."""
    if isinstance(node, (tree.Let, tree.Data, tree.Callable)):
        return [(node.name, node)]
    if isinstance(node, (tree.Dims, tree.Declare)):
        return [(e.name, e) for e in node.entries]
    return []


def _calls(node: Any) -> list[tree.Call]:
    """All calls below a node, in the order of the text."""
    found: list[tree.Call] = []
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, tree.Call):
            found.append(item)
        if isinstance(item, (tuple, list)):
            stack.extend(reversed(item))
        elif isinstance(item, tree.Node):
            stack.extend(reversed([getattr(item, f) for f in item.__dataclass_fields__ if f != "span"]))
    return found


_PRELUDES: dict[Path, tuple[tree.Node, ...]] = {}


def _prelude(path: Path) -> tuple[tree.Node, ...]:
    if path not in _PRELUDES:
        _PRELUDES[path] = parse(read_source(path), f"{PRELUDE}{path.name}").declarations
    return _PRELUDES[path]


def any_axes(value: Any) -> bool:
    """Whether a value names axes."""
    return isinstance(value, (Dim, Axes))
