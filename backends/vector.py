"""What kernels' source calls: scalar operations with exactly one meaning, memory with known aliasing, and the SIMD loops of
reductions and contractions. All are Numba intrinsics that emit LLVM IR inline; none leaves an undefined symbol on a target
with fma.

    y = memory(p0, f32, 0, 3)      buffer 0 of 3: no access to it overlaps one to buffer 1 or 2
    y[i] = fma(a, x[i], y[i])
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic

from alphac.backends.tiling import shapes

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
POINTER = I8.as_pointer()


# ---------------------------------------------------------------------- memory
class Memory(types.Type):
    """Elements of one dtype at an address. `scope` of `scopes`: accesses in different scopes never overlap."""

    def __init__(self, dtype: types.Type, scope: int, scopes: int) -> None:
        self.dtype, self.scope, self.scopes = dtype, scope, scopes
        super().__init__(name=f"Memory({dtype}, {scope} of {scopes})")


@register_default(Memory)
class _MemoryModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Memory) -> None:
        super().__init__(dmm, fe_type, POINTER)


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if isinstance(args[0], Memory):
            return signature(args[0].dtype, args[0], types.int64)
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if isinstance(args[0], Memory):
            return signature(types.none, args[0], types.int64, args[0].dtype)
        return None


def _stored(dtype: types.Type) -> ir.Type:
    """LLVM's type of an element in memory."""
    if isinstance(dtype, types.Boolean):
        return I8
    return _llvm(dtype)


def _llvm(dtype: types.Type) -> ir.Type:
    if isinstance(dtype, types.Boolean):
        return I1
    if isinstance(dtype, types.Float):
        return ir.FloatType() if dtype.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(dtype.bitwidth)


def _element(builder: Any, pointer: Any, index: Any, type_: ir.Type) -> Any:
    return builder.gep(builder.bitcast(pointer, type_.as_pointer()), [index], inbounds=True)


def _scoped(builder: Any, instruction: Any, memory: Memory) -> None:
    module = builder.module
    domain = module.add_metadata(["alphac"])
    scopes = [module.add_metadata([f"memory {i}", domain]) for i in range(memory.scopes)]
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[memory.scope]]))
    others = [s for i, s in enumerate(scopes) if i != memory.scope]
    if others:
        instruction.set_metadata("noalias", module.add_metadata(others))


@lower_builtin(operator.getitem, Memory, types.Integer)
def _lower_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    memory = sig.args[0]
    stored = _stored(memory.dtype)
    value = builder.load(_element(builder, args[0], args[1], stored))
    value.align = max(1, stored.width // 8 if isinstance(stored, ir.IntType) else _bytes(stored))
    _scoped(builder, value, memory)
    if isinstance(memory.dtype, types.Boolean):
        return builder.icmp_unsigned("!=", value, I8(0))
    return value


@lower_builtin(operator.setitem, Memory, types.Integer, types.Any)
def _lower_setitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    memory = sig.args[0]
    stored = _stored(memory.dtype)
    value = builder.zext(args[2], I8) if isinstance(memory.dtype, types.Boolean) else args[2]
    store = builder.store(value, _element(builder, args[0], args[1], stored))
    store.align = _bytes(stored)
    _scoped(builder, store, memory)
    return context.get_dummy_value()


def _bytes(type_: ir.Type) -> int:
    if isinstance(type_, ir.IntType):
        return max(1, type_.width // 8)
    return 4 if isinstance(type_, ir.FloatType) else 8


@intrinsic(prefer_literal=True)
def memory(typing: Any, base: Any, dtype: Any, scope: Any, scopes: Any) -> Any:
    """Memory at a pointer or an address."""
    made = Memory(dtype.instance_type, scope.literal_value, scopes.literal_value)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if isinstance(args[0].type, ir.IntType):
            return builder.inttoptr(args[0], POINTER)
        return builder.bitcast(args[0], POINTER)

    base = types.int64 if isinstance(base, types.Integer) else base
    return made(base, dtype, scope, scopes), generate


@intrinsic
def address(typing: Any, place: Any, index: Any) -> Any:
    """The address of an element."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(_element(builder, args[0], args[1], _stored(place.dtype)), I64)

    return types.int64(place, types.int64), generate


# ---------------------------------------------------------------------- scalar operations
def _suffix(type_: ir.Type) -> str:
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{_suffix(type_.element)}"
    if isinstance(type_, ir.IntType):
        return f"i{type_.width}"
    return "f32" if isinstance(type_, ir.FloatType) else "f64"


def call(builder: Any, name: str, operands: list[Any], result: ir.Type | None = None, suffix: str = "") -> Any:
    """Call LLVM's own function `llvm.NAME` on operands of one type."""
    type_ = operands[0].type
    function = ir.FunctionType(result or type_, [v.type for v in operands])
    full = f"llvm.{name}.{suffix or _suffix(type_)}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, full), operands)


def _floats(name: str, count: int) -> Callable[..., Any]:
    """An intrinsic for `llvm.NAME` on floats of one type."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return call(builder, name, list(args))

    if count == 1:

        @intrinsic
        def one(typing: Any, x: Any) -> Any:
            return x(x), generate

        return one
    if count == 2:

        @intrinsic
        def two(typing: Any, x: Any, y: Any) -> Any:
            return x(x, x), generate

        return two

    @intrinsic
    def three(typing: Any, x: Any, y: Any, z: Any) -> Any:
        return x(x, x, x), generate

    return three


def combine(builder: Any, kind: str, x: Any, y: Any, dtype: types.Type) -> Any:
    """x and y, scalars or vectors of `dtype`, joined by add, mul, minimum or maximum."""
    if isinstance(dtype, types.Float):
        if kind in ("minimum", "maximum"):
            return call(builder, kind, [x, y])
        return builder.fadd(x, y) if kind == "add" else builder.fmul(x, y)
    if kind in ("minimum", "maximum"):
        name = ("s" if dtype.signed else "u") + kind[:3]
        return call(builder, name, [x, y])
    return builder.add(x, y) if kind == "add" else builder.mul(x, y)


def _extreme(kind: str) -> Callable[..., Any]:
    @intrinsic
    def extreme(typing: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return combine(builder, kind, args[0], args[1], x)

        return x(x, x), generate

    return extreme


@intrinsic
def negate(typing: Any, x: Any) -> Any:
    """Flips the sign bit of a float."""
    return x(x), lambda context, builder, sig, args: builder.fneg(args[0])


@intrinsic
def select(typing: Any, condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y; both are evaluated."""
    return x(types.boolean, x, x), lambda context, builder, sig, args: builder.select(*args)


@intrinsic
def shl(typing: Any, x: Any, bits: Any) -> Any:
    return x(x, x), lambda context, builder, sig, args: builder.shl(*args)


@intrinsic
def shr(typing: Any, x: Any, bits: Any) -> Any:
    """Arithmetic for signed integers, logical for unsigned ones."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ashr(*args) if x.signed else builder.lshr(*args)

    return x(x, x), generate


def _division(quotient: bool) -> Callable[..., Any]:
    """Floored division: by 0 gives 0; the least integer by -1 wraps."""

    @intrinsic
    def division(typing: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, b = args
            zero, one = a.type(0), a.type(1)
            by_zero = builder.icmp_unsigned("==", b, zero)
            if not x.signed:
                divisor = builder.select(by_zero, one, b)
                result = builder.udiv(a, divisor) if quotient else builder.urem(a, divisor)
                return builder.select(by_zero, zero, result)
            by_minus = builder.icmp_signed("==", b, a.type(-1))
            divisor = builder.select(builder.or_(by_zero, by_minus), one, b)
            q = builder.sdiv(a, divisor)
            r = builder.sub(a, builder.mul(q, divisor))
            opposed = builder.icmp_signed("<", builder.xor(r, divisor), zero)
            down = builder.and_(builder.icmp_signed("!=", r, zero), opposed)
            if quotient:
                result = builder.select(down, builder.sub(q, one), q)
                result = builder.select(by_minus, builder.sub(zero, a), result)
            else:
                result = builder.select(down, builder.add(r, divisor), r)
                result = builder.select(by_minus, zero, result)
            return builder.select(by_zero, zero, result)

        return x(x, x), generate

    return division


@intrinsic
def div(typing: Any, x: Any, y: Any) -> Any:
    """Quotient of indices, neither negative, y > 0."""
    return types.int64(types.int64, types.int64), lambda context, builder, sig, args: builder.udiv(*args)


@intrinsic
def cast(typing: Any, x: Any, dtype: Any) -> Any:
    """x as another dtype: float to integer truncates and saturates, NaN gives 0; integers wrap; to bool is `!= 0`."""
    to = dtype.instance_type

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value, target = args[0], _llvm(to)
        from_float, to_float = isinstance(x, types.Float), isinstance(to, types.Float)
        if isinstance(to, types.Boolean):
            zero = ir.Constant(value.type, 0)
            return builder.fcmp_unordered("!=", value, zero) if from_float else builder.icmp_unsigned("!=", value, zero)
        if from_float and to_float:
            if x.bitwidth == to.bitwidth:
                return value
            return builder.fpext(value, target) if x.bitwidth < to.bitwidth else builder.fptrunc(value, target)
        if from_float:
            name = "fptosi.sat" if to.signed else "fptoui.sat"
            return call(builder, name, [value], target, f"{_suffix(target)}.{_suffix(value.type)}")
        signed = not isinstance(x, types.Boolean) and x.signed
        if to_float:
            return builder.sitofp(value, target) if signed else builder.uitofp(value, target)
        if value.type.width >= target.width:
            return builder.trunc(value, target) if value.type.width > target.width else value
        return builder.sext(value, target) if signed else builder.zext(value, target)

    return to(x, dtype), generate


@intrinsic
def bitcast(typing: Any, x: Any, dtype: Any) -> Any:
    """The same bits as another dtype of the same width."""
    to = dtype.instance_type
    return to(x, dtype), lambda context, builder, sig, args: builder.bitcast(args[0], _llvm(to))


@intrinsic
def widen(typing: Any, x: Any) -> Any:
    """bf16 (its bits) to f32."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(args[0], I32), I32(16)), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def narrow(typing: Any, x: Any) -> Any:
    """f32 that bf16 can represent to bf16 (its bits)."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.trunc(builder.lshr(builder.bitcast(args[0], I32), I32(16)), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def round_bf16(typing: Any, x: Any) -> Any:
    """f32 to the nearest bf16, ties to even, as f32. NaN stays NaN."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], I32)
        odd = builder.and_(builder.lshr(bits, I32(16)), I32(1))
        rounded = builder.and_(builder.add(builder.add(bits, I32(0x7FFF)), odd), I32(0xFFFF0000))
        nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.bitcast(builder.select(nan, I32(0x7FC00000), rounded), ir.FloatType())

    return types.float32(types.float32), generate


# ---------------------------------------------------------------------- the tree over leaves
@intrinsic
def merges_after(typing: Any, leaf: Any, leaves: Any) -> Any:
    """How often the two topmost partials are merged after leaf number `leaf` of `leaves` was pushed (the binary tree whose
    left part holds the largest power of two below their number): as a carry runs in a binary counter; at the end, all."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        leaf, leaves = args
        after = builder.add(leaf, I64(1))
        no_poison = ir.Constant(I1, 0)
        function = ir.FunctionType(I64, [I64, I1])
        trailing = cgutils.get_or_insert_function(builder.module, function, "llvm.cttz.i64")
        carry = builder.call(trailing, [after, no_poison])
        last = builder.icmp_signed("==", after, leaves)
        return builder.select(last, call(builder, "ctpop", [leaf]), carry)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def popcount(typing: Any, leaf: Any) -> Any:
    """How many partials wait before leaf number `leaf` is pushed."""
    return types.int64(types.int64), lambda context, builder, sig, args: call(builder, "ctpop", list(args))


SCALARS: dict[str, Any] = {
    "memory": memory,
    "address": address,
    "fma": _floats("fma", 3),
    "sqrt": _floats("sqrt", 1),
    "fabs": _floats("fabs", 1),
    "floor": _floats("floor", 1),
    "ceil": _floats("ceil", 1),
    "rint": _floats("roundeven", 1),
    "trunc": _floats("trunc", 1),
    "copysign": _floats("copysign", 2),
    "minimum": _extreme("minimum"),
    "maximum": _extreme("maximum"),
    "negate": negate,
    "select": select,
    "shl": shl,
    "shr": shr,
    "floordiv": _division(quotient=True),
    "mod": _division(quotient=False),
    "div": div,
    "cast": cast,
    "bitcast": bitcast,
    "widen": widen,
    "narrow": narrow,
    "round_bf16": round_bf16,
    "merges_after": merges_after,
    "popcount": popcount,
}


# ---------------------------------------------------------------------- SIMD loops
LANES = 16  # of a reduction, whatever the vector registers' width


def _vector(type_: ir.Type, count: int) -> ir.Type:
    return ir.VectorType(type_, count)


def _splat(builder: Any, value: Any, count: int) -> Any:
    vector = _vector(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, I32(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(_vector(I32, count), [0] * count))


def _load(builder: Any, pointer: Any, index: Any, type_: ir.Type, count: int = 1) -> Any:
    """One element or a vector of them, at an element's index."""
    place = _element(builder, pointer, index, type_)
    if count > 1:
        place = builder.bitcast(place, _vector(type_, count).as_pointer())
    value = builder.load(place)
    value.align = _bytes(type_)
    return value


def _store(builder: Any, value: Any, pointer: Any, index: Any, type_: ir.Type) -> None:
    place = _element(builder, pointer, index, type_)
    builder.store(value, builder.bitcast(place, value.type.as_pointer())).align = _bytes(type_)


def _identity(kind: str, dtype: types.Type) -> Any:
    if kind == "add":
        return 0
    if isinstance(dtype, types.Float):
        return float("inf") if kind == "minimum" else float("-inf")
    low = -(1 << (dtype.bitwidth - 1)) if dtype.signed else 0
    return low + (1 << dtype.bitwidth) - 1 if kind == "minimum" else low


def _function(builder: Any, name: str, result: ir.Type, parameters: list[ir.Type]) -> tuple[Any, Any]:
    """A function of the module, and a builder for its body if it is new."""
    known = builder.module.globals.get(name)
    if known is not None:
        return known, None
    function = ir.Function(builder.module, ir.FunctionType(result, parameters), name)
    function.linkage = "internal"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _lanes(kind: str, width: int) -> Callable[..., Any]:
    """One leaf of a reduction: elements [start, start + n) of memory in 16 strided lanes, each from the identity, then lane
    l with lane l + 8, + 4, + 2, + 1. `width`: bytes of a vector register."""

    @intrinsic
    def lanes(typing: Any, place: Any, start: Any, n: Any) -> Any:
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            element = _llvm(dtype)
            name = f"lanes_{kind}_{dtype}_{width}"
            function, body = _function(builder, name, element, [POINTER, I64])
            if body is not None:
                _lanes_body(body, function, kind, dtype, min(LANES, width // _bytes(element)))
            pointer = builder.bitcast(_element(builder, args[0], args[1], element), POINTER)
            return builder.call(function, [pointer, args[2]])

        return dtype(place, types.int64, types.int64), generate

    return lanes


def _lanes_body(b: Any, function: Any, kind: str, dtype: types.Type, count: int) -> None:
    """`count` lanes to a vector, 16 // count vectors."""
    pointer, n = function.args
    element, vectors = _llvm(dtype), LANES // count
    vector = _vector(element, count)
    identity = ir.Constant(vector, [ir.Constant(element, _identity(kind, dtype))] * count)
    entry, loop, tail, last, done = b.block, *(b.append_basic_block(x) for x in ("rows", "tail", "last", "done"))
    whole = b.and_(n, I64(-LANES))
    b.cbranch(b.icmp_unsigned(">", whole, I64(0)), loop, tail)

    b.position_at_end(loop)
    i = b.phi(I64)
    sums = [b.phi(vector) for _ in range(vectors)]
    rows = [_load(b, pointer, b.add(i, I64(v * count)), element, count) for v in range(vectors)]
    following = [combine(b, kind, x, y, dtype) for x, y in zip(sums, rows, strict=True)]
    after = b.add(i, I64(LANES))
    i.add_incoming(I64(0), entry)
    i.add_incoming(after, loop)
    for value, new in zip(sums, following, strict=True):
        value.add_incoming(identity, entry)
        value.add_incoming(new, loop)
    b.cbranch(b.icmp_unsigned("<", after, whole), loop, tail)

    b.position_at_end(tail)
    before = [b.phi(vector) for _ in range(vectors)]
    for value, new in zip(before, following, strict=True):
        value.add_incoming(identity, entry)
        value.add_incoming(new, loop)
    b.cbranch(b.icmp_unsigned("<", whole, n), last, done)

    b.position_at_end(last)
    left = b.trunc(b.sub(n, whole), I32)
    ends = [
        combine(b, kind, x, _masked_load(b, pointer, b.add(whole, I64(v * count)), element, count, left, v * count, identity), dtype)
        for v, x in enumerate(before)
    ]
    b.branch(done)

    b.position_at_end(done)
    parts: list[Any] = []
    for x, y in zip(before, ends, strict=True):
        value = b.phi(vector)
        value.add_incoming(x, tail)
        value.add_incoming(y, last)
        parts.append(value)
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [combine(b, kind, x, y, dtype) for x, y in zip(parts[:half], parts[half:], strict=True)]
    total = parts[0]
    while count > 1:
        count //= 2
        low, high = (ir.Constant(_vector(I32, count), [s + c for c in range(count)]) for s in (0, count))
        total = combine(b, kind, b.shuffle_vector(total, total, low), b.shuffle_vector(total, total, high), dtype)
    b.ret(b.extract_element(total, I32(0)))


def _masked_load(b: Any, pointer: Any, index: Any, type_: ir.Type, count: int, left: Any, first: int, rest: Any) -> Any:
    """A vector whose lanes first, first + 1, … are elements where the lane's number is below `left`, else those of `rest`."""
    numbers = ir.Constant(_vector(I32, count), [first + c for c in range(count)])
    mask = b.icmp_unsigned("<", numbers, _splat(b, left, count))
    vector = _vector(type_, count)
    place = b.bitcast(_element(b, pointer, index, type_), vector.as_pointer())
    signature = ir.FunctionType(vector, [place.type, I32, mask.type, vector])
    function = cgutils.get_or_insert_function(b.module, signature, f"llvm.masked.load.{_suffix(vector)}.p0")
    return b.call(function, [place, I32(_bytes(type_)), mask, rest])


def _multiply(form: str, height: int, vectors: int, width: int) -> Callable[..., Any]:
    """A register tile of a product: `height` rows by `vectors` vectors of `width` bytes.

    multiply(terms, a, stride, rows, b, b_stride, c, c_stride, slot, merges): one chain of fma over `terms` terms per element,
    from +0; then `merges` times the sum of the earlier partial `slot` elements below with it; stored as many slots below c.

    form rows:      row i of the left operand at a + i * stride, its terms side by side; rows past `rows` repeat the last
    form columns:   term k of it at a + k * stride, its rows side by side (there must be `height` of them)

    Addresses in bytes, strides in elements.
    """

    @intrinsic
    def multiply(
        typing: Any, place: Any, terms: Any, a: Any, a_stride: Any, rows: Any, b: Any, b_stride: Any, c: Any, c_stride: Any,
        slot: Any, merges: Any,
    ) -> Any:  # fmt: skip
        dtype = place.dtype

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            name = f"multiply_{form}_{height}x{vectors}_{dtype}_{width}"
            function, body = _function(builder, name, ir.VoidType(), [I64] * 10)
            if body is not None:
                _Tile(body, function, form, height, vectors, dtype, width // _bytes(_llvm(dtype))).emit()
            builder.call(function, list(args[1:]))
            return context.get_dummy_value()

        return types.void(place, *[types.int64] * 10), generate

    return multiply


class _Tile:
    """The body of `multiply`."""

    def __init__(
        self, b: Any, function: Any, form: str, height: int, vectors: int, dtype: types.Type, count: int
    ) -> None:
        self.b, self.function, self.form = b, function, form
        self.height, self.vectors, self.dtype, self.count = height, vectors, dtype, count
        self.element = _llvm(dtype)
        self.vector = _vector(self.element, count)
        self.terms, a, self.a_stride, self.rows, b_, self.b_stride, c, self.c_stride, self.slot, self.merges = function.args
        self.a, self.right, self.c = (b.inttoptr(v, POINTER) for v in (a, b_, c))

    def emit(self) -> None:
        b = self.b
        left = self._left()
        entry = b.block
        loop, merge, more, store = (b.append_basic_block(n) for n in ("terms", "merge", "more", "store"))
        zero = ir.Constant(self.vector, [ir.Constant(self.element, 0)] * self.count)
        b.branch(loop)

        b.position_at_end(loop)
        k = b.phi(I64)
        sums = self._phis()
        columns = [self._row(self.right, b.add(b.mul(k, self.b_stride), I64(v * self.count))) for v in range(self.vectors)]
        products: list[list[Any]] = []
        for i in range(self.height):
            factor = _splat(b, left(i, k), self.count)
            products.append([self._fma(factor, x, s) for x, s in zip(columns, sums[i], strict=True)])
        after = b.add(k, I64(1))
        k.add_incoming(I64(0), entry)
        k.add_incoming(after, loop)
        self._incoming(sums, [[zero] * self.vectors] * self.height, entry)
        self._incoming(sums, products, loop)
        b.cbranch(b.icmp_signed("<", after, self.terms), loop, merge)

        b.position_at_end(merge)
        m, place, totals = b.phi(I64), b.phi(I64), self._phis()
        m.add_incoming(I64(0), loop)
        place.add_incoming(I64(0), loop)
        self._incoming(totals, products, loop)
        b.cbranch(b.icmp_signed("<", m, self.merges), more, store)

        b.position_at_end(more)
        below = b.sub(place, self.slot)
        merged = [
            [combine(b, "add", self._row(self.c, self._at(below, i, v)), x, self.dtype) for v, x in enumerate(row)]
            for i, row in enumerate(totals)
        ]
        m.add_incoming(b.add(m, I64(1)), more)
        place.add_incoming(below, more)
        self._incoming(totals, merged, more)
        b.branch(merge)

        b.position_at_end(store)
        for i, row in enumerate(totals):
            for v, x in enumerate(row):
                _store(b, x, self.c, self._at(place, i, v), self.element)
        b.ret_void()

    def _left(self) -> Callable[[int, Any], Any]:
        """How to load the left operand's element of row i and term k."""
        b = self.b
        if self.form == "columns":
            return lambda i, k: _load(b, self.a, b.add(b.mul(k, self.a_stride), I64(i)), self.element)
        last = b.sub(self.rows, I64(1))
        starts = [b.mul(call(b, "smin", [I64(i), last]), self.a_stride) if i else I64(0) for i in range(self.height)]
        rows = [_element(b, self.a, s, self.element) for s in starts]
        return lambda i, k: _load(b, rows[i], k, self.element)

    def _row(self, pointer: Any, index: Any) -> Any:
        return _load(self.b, pointer, index, self.element, self.count)

    def _at(self, place: Any, i: int, v: int) -> Any:
        b = self.b
        return b.add(b.add(place, b.mul(I64(i), self.c_stride)), I64(v * self.count))

    def _fma(self, x: Any, y: Any, z: Any) -> Any:
        if isinstance(self.dtype, types.Float):
            return call(self.b, "fma", [x, y, z])
        return self.b.add(self.b.mul(x, y), z)

    def _phis(self) -> list[list[Any]]:
        return [[self.b.phi(self.vector) for _ in range(self.vectors)] for _ in range(self.height)]

    def _incoming(self, phis: list[list[Any]], values: list[list[Any]], block: Any) -> None:
        for row, new in zip(phis, values, strict=True):
            for phi, value in zip(row, new, strict=True):
                phi.add_incoming(value, block)


@cache
def vector_loops(lanes: int, registers: int) -> dict[str, Any]:
    """The SIMD loops for a vector width (f32 elements) and a number of registers, by the name that source calls them."""
    loops = {f"lanes_{kind}": _lanes(kind, 4 * lanes) for kind in ("add", "minimum", "maximum")}
    for height, vectors in shapes(registers):
        for form in ("rows", "columns"):
            loops[f"multiply_{form}_{height}x{vectors}"] = _multiply(form, height, vectors, 4 * lanes)
    return loops
