"""Functions that kernels in C call: each in words of the language, for one type.

$t is the type, $u the unsigned integer as wide, $f the type that is converted from; $as_t and $as_u take bits as
another type, $least and $most are the ends of $t, $beyond the first number after it, as $f.
"""

from __future__ import annotations

from string import Template
from typing import Any

from numba.core import types

from alphac.backends.c.expressions import literal, type_name, unsigned_name
from alphac.backends.c.language import Language

_EXTREME = "static $t {name}_$t($t x, $t y) {{\n    return {text};\n}}\n"
# A NaN wins; of equal numbers, which may be zeros, the sign bit decides.
_FLOATS = "x {sign} y ? x : y {sign} x ? y : x == y ? $as_t($as_u(x) {bits} $as_u(y)) : x + y"
_INTEGERS = "x {sign} y ? x : y"

_DIVISION = {
    ("floordiv", True): """static $t floordiv_$t($t x, $t y) {
    if (y == 0)
        return 0;
    if (y == -1)
        return ($t)(0 - ($u)x);
    return x % y != 0 && (x ^ y) < 0 ? x / y - 1 : x / y;
}
""",
    ("mod", True): """static $t mod_$t($t x, $t y) {
    if (y == 0 || y == -1)
        return 0;
    return x % y != 0 && (x ^ y) < 0 ? x % y + y : x % y;
}
""",
    ("floordiv", False): "static $t floordiv_$t($t x, $t y) {\n    return y == 0 ? 0 : x / y;\n}\n",
    ("mod", False): "static $t mod_$t($t x, $t y) {\n    return y == 0 ? 0 : x % y;\n}\n",
}
_SATURATED = {
    True: """static $t ${f}_to_$t($f x) {
    return x >= $beyond ? $most : x <= -$beyond ? $least : x == x ? ($t)x : 0;
}
""",
    False: "static $t ${f}_to_$t($f x) {\n    return x >= $beyond ? $most : x > 0 ? ($t)x : 0;\n}\n",
}
_OTHERS = {
    "widen": "static float widen(ushort x) {\n    return $as_float((uint)x << 16);\n}\n",
    "narrow": "static ushort narrow(float x) {\n    return (ushort)($as_uint(x) >> 16);\n}\n",
    "round_bf16": """static float round_bf16(float x) {
    const uint bits = $as_uint(x);
    return x != x ? NAN : $as_float((bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u);
}
""",
    # How often a carry runs in a binary counter; at the end, all that wait are merged.
    "merges_after": """static long merges_after(long leaf, long leaves) {
    const uint before = (uint)leaf;
    return popcount(leaf + 1 == leaves ? before : before & ~(before + 1));
}
""",
}


def function(name: str, kind: Any, language: Language, source: Any = None) -> tuple[str, str]:
    """The name and the text of a function: `name` for a type; of a conversion, from `source`."""
    if name in _OTHERS:
        return name, _filled(_OTHERS[name], language)
    t = type_name(kind)
    if name == "convert":
        words = {"f": type_name(source), "least": literal(_ends(kind)[0], kind), "most": literal(_ends(kind)[1], kind)}
        words["beyond"] = literal(float(_ends(kind)[1] + 1), source)
        return f"{words['f']}_to_{t}", _filled(_SATURATED[kind.signed], language, t=t, **words)
    if name in ("floordiv", "mod"):
        text = _DIVISION[name, kind.signed]
    else:
        least = name == "minimum"
        shape = _FLOATS if isinstance(kind, types.Float) else _INTEGERS
        chosen = shape.format(sign="<" if least else ">", bits="|" if least else "&")
        text = _EXTREME.format(name=name, text=chosen)
    u = unsigned_name(kind)
    return f"{name}_{t}", _filled(text, language, t=t, u=u, as_t=language.as_bits(t), as_u=language.as_bits(u))


def _ends(kind: Any) -> tuple[int, int]:
    low = -(1 << (kind.bitwidth - 1)) if kind.signed else 0
    return low, low + (1 << kind.bitwidth) - 1


def _filled(text: str, language: Language, **words: object) -> str:
    known = {f"as_{t}": language.as_bits(t) for t in ("float", "uint")}
    return Template(text).substitute(**known, **words)
