"""Records (named tuples, which cost a starting role least) from and to JSON, with every field checked: what a file says
is never trusted."""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
MAX_DEPTH = 64


class CodingError(ValueError):
    """JSON that is not what a record needs; the message names the place."""


def encode(record: Any) -> Any:
    """A record as JSON values; fields that equal their default are left out."""
    if isinstance(record, tuple | list):
        items = typing.cast("tuple[Any, ...]", record)
        names: tuple[str, ...] | None = getattr(items, "_fields", None)
        if names is None:
            return [encode(item) for item in items]
        defaults: dict[str, Any] = getattr(items, "_field_defaults")  # noqa: B009
        return {
            n: encode(v) for n, v in zip(names, items, strict=True) if not (n in defaults and _same(v, defaults[n]))
        }
    if isinstance(record, Mapping):
        return {str(key): encode(value) for key, value in typing.cast("Mapping[str, Any]", record).items()}
    if isinstance(record, float) and not math.isfinite(record):
        return repr(record)  # JSON has no infinities: a field that may hold one takes words too
    return record


def _same(value: Any, default: Any) -> bool:
    """Whether a field has its default; 1, 1.0 and True differ."""
    return value == default and (type(value) is type(default) or isinstance(value, Mapping))


def canonical(value: Any) -> bytes:
    """JSON bytes that are the same for the same values: what digests are taken of. No NaN, no infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def parse_json(data: bytes, what: str) -> Any:
    """Parse untrusted JSON. Raises CodingError for bad UTF-8, bad or too deep JSON, doubled keys and NaN."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise CodingError(f"{what}: a key occurs twice")
        return found

    def constant(name: str) -> float:
        raise CodingError(f"{what}: {name} is no JSON number")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except CodingError:
        raise
    except ValueError as error:  # bad UTF-8, bad JSON, a number of absurd length
        raise CodingError(f"{what} is no JSON: {error}") from None
    except RecursionError:
        raise CodingError(f"{what} is nested too deeply") from None


def decode(kind: type[T], value: Any, where: str) -> T:
    """`value` as a record of type `kind`. Raises CodingError naming the field that is missing, odd or unknown."""
    return typing.cast(T, _decode(kind, value, where, 0))


@functools.cache
def _fields(kind: type[Any]) -> dict[str, tuple[Any, bool]]:
    """Of every field its type, and whether it must be given."""
    hints = typing.get_type_hints(kind)
    names: tuple[str, ...] = getattr(kind, "_fields", ())
    return {name: (hints[name], name not in getattr(kind, "_field_defaults", {})) for name in names}


@functools.cache
def _shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


def _decode(kind: Any, value: Any, where: str, depth: int) -> Any:
    if kind is int or kind is str or kind is bool:
        if type(value) is not kind:
            raise CodingError(f"{where} must be {kind.__name__}, not {_brief(value)}")
        return value
    if kind is float:
        if type(value) not in (int, float):
            raise CodingError(f"{where} must be a number, not {_brief(value)}")
        return float(value)
    if depth > MAX_DEPTH:
        raise CodingError(f"{where} is nested too deeply")
    origin, arguments = _shape(kind)
    if origin is tuple:
        return _decode_tuple(arguments, value, where, depth)
    if origin is dict or origin is Mapping:
        if type(value) is not dict:
            raise CodingError(f"{where} must be an object, not {_brief(value)}")
        mapping = typing.cast("dict[str, Any]", value)
        return {k: _decode(arguments[1], v, f"{where}.{k}", depth + 1) for k, v in mapping.items()}
    if origin is types.UnionType:
        return _decode_union(arguments, value, where, depth)
    return _decode_record(kind, value, where, depth)


def _decode_tuple(arguments: tuple[Any, ...], value: Any, where: str, depth: int) -> tuple[Any, ...]:
    if type(value) is not list:
        raise CodingError(f"{where} must be a list, not {_brief(value)}")
    items = typing.cast("list[Any]", value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        if arguments[0] is int and set(map(type, items)) <= {int}:
            return tuple(items)
        return tuple(_decode(arguments[0], v, f"{where}[{i}]", depth + 1) for i, v in enumerate(items))
    if len(items) != len(arguments):
        raise CodingError(f"{where} must have {len(arguments)} items, not {len(items)}")
    return tuple(
        _decode(k, v, f"{where}[{i}]", depth + 1) for i, (k, v) in enumerate(zip(arguments, items, strict=True))
    )


def _decode_union(arguments: tuple[Any, ...], value: Any, where: str, depth: int) -> Any:
    if value is None and type(None) in arguments:
        return None
    for kind in arguments:
        if type(value) is kind:
            return value
    if type(value) is dict:
        for kind in arguments:
            fields = _fields(kind)
            if fields and all(n in value for n, (_, needed) in fields.items() if needed):
                return _decode(kind, value, where, depth)
    raise CodingError(f"{where} must be one of {', '.join(k.__name__ for k in arguments)}, not {_brief(value)}")


def _decode_record(kind: Any, value: Any, where: str, depth: int) -> Any:
    if type(value) is not dict:
        raise CodingError(f"{where} must be an object, not {_brief(value)}")
    given: Mapping[str, Any] = typing.cast("dict[str, Any]", value)
    fields = _fields(kind)
    made: dict[str, Any] = {}
    for name, (hint, needed) in fields.items():
        if name in given:
            made[name] = _decode(hint, given[name], f"{where}.{name}", depth + 1)
        elif needed:
            raise CodingError(f"{where} lacks `{name}`")
    if len(made) != len(given):
        unknown = next(name for name in given if name not in fields)
        raise CodingError(f"{where} has an unknown field `{unknown}`")
    return kind(**made)


def _brief(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, dict | list) else type(typing.cast(Any, value)).__name__
    return text if len(text) <= 40 else text[:37] + "..."
