"""What kernels' source calls: scalar operations with exactly one meaning, and memory with known aliasing. All are Numba
intrinsics that emit LLVM IR inline; none leaves an undefined symbol on a target with fma. SIMD loops are in simd.py.

    y = memory(p0, f32, 0, 3)      buffer 0 of 3: no access to it overlaps one to buffer 1 or 2
    y[i] = fma(a, x[i], y[i])
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
POINTER = I8.as_pointer()
_typing: Any = infer_global  # whose own type says that it returns None


# ---------------------------------------------------------------------- memory
class Memory(types.Type):
    """Elements of one dtype at an address. `scope` of `scopes`: accesses in different scopes never overlap."""

    def __init__(self, dtype: Any, scope: int, scopes: int) -> None:
        self.dtype, self.scope, self.scopes = dtype, scope, scopes
        super().__init__(name=f"Memory({dtype}, {scope} of {scopes})")


@register_default(Memory)
class _MemoryModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Memory) -> None:
        super().__init__(dmm, fe_type, POINTER)


@_typing(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if isinstance(args[0], Memory):
            return signature(args[0].dtype, args[0], types.int64)
        return None


@_typing(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if isinstance(args[0], Memory):
            return signature(types.none, args[0], types.int64, args[0].dtype)
        return None


def _stored(dtype: Any) -> Any:
    """LLVM's type of an element in memory."""
    if isinstance(dtype, types.Boolean):
        return I8
    return llvm_type(dtype)


def llvm_type(dtype: Any) -> Any:
    if isinstance(dtype, types.Boolean):
        return I1
    if isinstance(dtype, types.Float):
        return ir.FloatType() if dtype.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(dtype.bitwidth)


def element_pointer(builder: Any, pointer: Any, index: Any, type_: ir.Type) -> Any:
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
    return load_element(builder, args[0], args[1], sig.args[0])


def load_element(builder: Any, pointer: Any, index: Any, memory: Memory, align: int = 1) -> Any:
    """The element of memory at an index; `align`: of what its address is a multiple beside its own size."""
    stored = _stored(memory.dtype)
    value = builder.load(element_pointer(builder, pointer, index, stored))
    value.align = max(align, bytes_of(stored))
    _scoped(builder, value, memory)
    if isinstance(memory.dtype, types.Boolean):
        return builder.icmp_unsigned("!=", value, I8(0))
    return value


@lower_builtin(operator.setitem, Memory, types.Integer, types.Any)
def _lower_setitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    store_element(builder, args[0], args[1], args[2], sig.args[0])
    return context.get_dummy_value()


def store_element(builder: Any, pointer: Any, index: Any, value: Any, memory: Memory) -> None:
    """Store a value of memory's dtype at an index."""
    stored = _stored(memory.dtype)
    value = builder.zext(value, I8) if isinstance(memory.dtype, types.Boolean) else value
    store = builder.store(value, element_pointer(builder, pointer, index, stored))
    store.align = bytes_of(stored)
    _scoped(builder, store, memory)


def bytes_of(type_: ir.Type) -> int:
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


@dataclass(frozen=True)
class Allocation:
    """Memory that a kernel has beside its buffers: `generate` makes it of a builder at the function's entry, its type,
    and the number that the source gives first."""

    generate: Callable[[Any, Memory, int], Any]


@intrinsic
def address(typing: Any, place: Any, index: Any) -> Any:
    """The address of an element."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(element_pointer(builder, args[0], args[1], _stored(place.dtype)), I64)

    return types.int64(place, types.int64), generate


# ---------------------------------------------------------------------- scalar operations
def suffix_of(type_: ir.Type) -> str:
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{suffix_of(type_.element)}"
    if isinstance(type_, ir.IntType):
        return f"i{type_.width}"
    return "f32" if isinstance(type_, ir.FloatType) else "f64"


def call(builder: Any, name: str, operands: list[Any], result: ir.Type | None = None, suffix: str = "") -> Any:
    """Call LLVM's own function `llvm.NAME` on operands of one type."""
    type_ = operands[0].type
    function = ir.FunctionType(result or type_, [v.type for v in operands])
    full = f"llvm.{name}.{suffix or suffix_of(type_)}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, full), operands)


def fetch(builder: Any, pointer: Any) -> None:
    """Ask for the cache line at an address, which need not be valid."""
    signature = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    builder.call(function, [builder.bitcast(pointer, POINTER), I32(0), I32(2), I32(1)])


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


def combine(builder: Any, kind: str, x: Any, y: Any, dtype: Any) -> Any:
    """x and y, scalars or vectors of `dtype`, joined by add, mul, minimum or maximum."""
    if isinstance(dtype, types.Float):
        if kind in ("minimum", "maximum"):
            return call(builder, kind, [x, y])
        return builder.fadd(x, y) if kind == "add" else builder.fmul(x, y)
    if kind in ("minimum", "maximum"):
        name = ("s" if dtype.signed else "u") + kind[:3]
        return call(builder, name, [x, y])
    return builder.add(x, y) if kind == "add" else builder.mul(x, y)


def identity_of(kind: str, dtype: Any) -> Any:
    """What `combine` joins with any x to x."""
    if kind == "add":
        return 0
    if isinstance(dtype, types.Float):
        return float("inf") if kind == "minimum" else float("-inf")
    low = -(1 << (dtype.bitwidth - 1)) if dtype.signed else 0
    return low + (1 << dtype.bitwidth) - 1 if kind == "minimum" else low


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
    return to(x, dtype), lambda context, builder, sig, args: cast_value(builder, args[0], x, to)


def cast_value(builder: Any, value: Any, x: Any, to: Any) -> Any:
    """A value of dtype x as dtype `to`."""
    target = llvm_type(to)
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
        return call(builder, name, [value], target, f"{suffix_of(target)}.{suffix_of(value.type)}")
    signed = not isinstance(x, types.Boolean) and x.signed
    if to_float:
        return builder.sitofp(value, target) if signed else builder.uitofp(value, target)
    if value.type.width >= target.width:
        return builder.trunc(value, target) if value.type.width > target.width else value
    return builder.sext(value, target) if signed else builder.zext(value, target)


@intrinsic
def bitcast(typing: Any, x: Any, dtype: Any) -> Any:
    """The same bits as another dtype of the same width."""
    to = dtype.instance_type
    return to(x, dtype), lambda context, builder, sig, args: builder.bitcast(args[0], llvm_type(to))


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
    """How often the two topmost partials are merged after leaf number `leaf` of `leaves` was pushed (the binary tree
    whose left part holds the largest power of two below their number): as a carry runs in a binary counter; at the
    end, all."""

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
