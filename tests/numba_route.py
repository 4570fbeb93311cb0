"""A kernel's source through Numba's own pipeline: what `backends/translate.py` must agree with."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.core.compiler import Flags, compile_extra
from numba.core.registry import cpu_target

from alphac.backends.target import KernelSource


def translated_by_numba(source: KernelSource) -> str:
    """The module that `translate` makes, made by Numba, which optimizes as it does."""
    namespace = dict(source.namespace)
    exec(compile(source.source, f"<{source.name}>", "exec"), namespace)  # noqa: S102 (our own text)
    pointers = [
        types.CPointer(getattr(types, p.storage.name if p.kind != "bool" else "uint8")) for p in source.parameters
    ]
    flags: Any = Flags()
    flags.no_compile = True
    flags.nrt = False
    flags.error_model = "numpy"
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    made = compile_extra(
        cpu_target.typing_context,
        cpu_target.target_context,
        namespace[source.name],
        (*pointers, *[types.int64] * (source.loops + source.integers)),
        types.void,
        flags,
        {},
    )
    inner = made.fndesc.llvm_func_name
    module = llvm.parse_assembly(made.library.get_llvm_str() + _exported(source, inner))
    for library in made.library._linking_libraries:
        module.link_in(llvm.parse_assembly(str(library._get_module_for_linking())))
    return str(module)


def _exported(source: KernelSource, inner: str) -> str:
    """The exported function: Numba's own has a place for its result and for an exception, which a kernel does not
    use."""
    pointers = [f"%p{i}" for i in range(len(source.parameters))]
    integers = [f"%i{i}" for i in range(source.loops + source.integers)]
    taken = ", ".join([*(f"ptr {p}" for p in pointers), *(f"i64 {i}" for i in integers)])
    passed = ", ".join(["ptr %result", "ptr %error", *(f"ptr {p}" for p in pointers), *(f"i64 {i}" for i in integers)])
    return (
        f"\ndefine void @{source.name}({taken}) {{\n  %result = alloca ptr\n  %error = alloca ptr\n"
        f"  %status = call i32 @{inner}({passed})\n  ret void\n}}\n"
    )
