"""Sums of products: `@`, `dot`, `einsum`."""

from __future__ import annotations

from alphac.diagnostics import Label, fail
from alphac.frontend.reduction import from_shards, masked, reduce
from alphac.frontend.scope import Context
from alphac.frontend.values import type_text
from alphac.ir.core import Value
from alphac.ir.span import Span
from alphac.ir.typesys import F32, Dim


def contract(context: Context, a: Value, b: Value, over: set[str], span: Span) -> Value:
    """The sum of a * b over the named axes, axes aligned by name; result axes: a's, then b's others."""
    dims = [d for d in a.type.dims if d.name not in over]
    dims += [d for d in b.type.dims if d.name not in over and not a.type.has(d.name)]
    return contract_to(context, a, b, tuple(dims), span)


def contract_to(context: Context, a: Value, b: Value, dims: tuple[Dim, ...], span: Span) -> Value:
    """The sum of a * b over all axes that are not in `dims`."""
    if a.type.dtype != b.type.dtype:
        labels = (Label(span, f"{type_text(a.type)} and {type_text(b.type)}"),)
        raise fail(
            "E113", f"{a.type.dtype} meets {b.type.dtype} in a contraction", span, f"cast: `{a.type.dtype}(…)`", labels
        )
    a, b = _summed(context, a, b, dims, span), _summed(context, b, a, dims, span)
    grain = a.type.grain or b.type.grain
    name = "contract_fast" if context.fast and a.type.dtype == F32 else "contract"
    with context.at(span):
        if grain is None or grain in dims:
            return context.emit(name, a, b, dims=dims)
        a, b = (masked(context, v, 0) if v.type.grain is not None else v for v in (a, b))
        return from_shards(context, context.emit(name, a, b, dims=dims), "sum")


def _summed(context: Context, a: Value, b: Value, dims: tuple[Dim, ...], span: Span) -> Value:
    """a without the axes that neither b nor the result has: these are summed first."""
    kept = {d.name for d in (*dims, *b.type.dims)}
    return reduce(context, a, tuple(n for n in a.type.names if n not in kept), "sum", span)


def einsum(context: Context, text: str, operands: list[Value], spans: list[Span], span: Span) -> Value:
    """`einsum("bk, bc -> kc", a, b)`: letters stand for the operands' axes in their order; more than two operands are
    joined from left to right."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or not all(t.isalpha() or t == "" for t in (*terms, right)):
        raise fail("E116", f'`"{text}"` is no einsum', span, 'write axes as letters: `"bk, bc -> kc"`')
    if len(terms) != len(operands):
        raise fail(
            "E116", f"`{text}` has {len(terms)} operands, and {len(operands)} are given", span, "one term for each"
        )
    letters: dict[str, Dim] = {}
    for term, value, at in zip(terms, operands, spans, strict=True):
        if len(term) != len(value.type.dims):
            message = f"`{term}` names {len(term)} axes of {type_text(value.type)}"
            raise fail("E111", message, at, "one letter for each axis")
        for letter, dim in zip(term, value.type.dims, strict=True):
            if letters.setdefault(letter, dim).name != dim.name or letters[letter].size != dim.size:
                message = (
                    f"`{letter}` is `{letters[letter].name}` ({letters[letter].size}) and `{dim.name}` ({dim.size})"
                )
                raise fail("E111", message, at, "a letter stands for one axis; `rename(x, old, new)` renames one")
    names = [d.name for d in letters.values()]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        help = f"axes align by name: rename one of them, e.g. `rename(x, {twice}, other)`"
        raise fail("E111", f"two letters stand for `{twice}`", span, help)
    if missing := [c for c in right if c not in letters]:
        raise fail("E116", f"`{missing[0]}` stands on the right only", span, "results are made of the operands' axes")
    if len(set(right)) != len(right):
        raise fail("E118", f"`{right}` names an axis twice", span, "a type names each dim once")
    result = tuple(letters[c] for c in right)
    return _fold(context, operands, result, span)


def _fold(context: Context, operands: list[Value], result: tuple[Dim, ...], span: Span) -> Value:
    """Join operands from left to right; an axis is summed as soon as no later operand has it."""
    wanted = {d.name for d in result}
    value = operands[0]
    for i, other in enumerate(operands[1:], 1):
        later = {d.name for o in operands[i + 1 :] for d in o.type.dims} | wanted
        if i == len(operands) - 1:
            return contract_to(context, value, other, result, span)
        dims = {d.name: d for d in (*value.type.dims, *other.type.dims) if d.name in later}
        value = contract_to(context, value, other, tuple(dims.values()), span)
    over = tuple(d.name for d in value.type.dims if d.name not in wanted)
    if over:
        value = reduce(context, value, over, "sum", span)
    return context.broadcast(value, result)
