"""Kernel sources and segments to one object.

    source ─translate→ LLVM per kernel ─O3 for the target→ bitcode (cached by content)
    bitcode of all kernels + segments ─link→ one module ─emit→ object (cached by content)
    object ─the target's linker, if it has one→ what a device loads

Every kernel becomes a function `void NAME(pointers…, integers…)`; everything it is made of is internal to it and
inlined. Arithmetic stays as written: no fast-math flags, no contraction of a product and a sum. Nothing is left
undefined in the object, so that it can be loaded anywhere.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache as once

import llvmlite.binding as llvm

from alphac.backends.cache import Cache, cache_directory, code_version
from alphac.backends.objects import undefined_symbols
from alphac.backends.target import KernelSource, Target
from alphac.backends.translate import translate
from alphac.ir.errors import InternalError

FEW_JOBS = 4  # kernels for which processes are not worth their start


def compile_object(
    sources: Iterable[KernelSource],
    segments: str,
    target: Target,
    store: Cache | None = None,
    processes: int | None = None,
) -> bytes:
    """One object with all kernels (equal names are one kernel) and the functions of `segments` (LLVM IR).

    `processes`: how many may compile at a time; by default as many as there are cores. Raises InternalError with the
    kernel's source if one does not compile, ToolMissing if the target's linker is not here.
    """
    store = store if store is not None else Cache(cache_directory())
    kernels, keys = _keyed(sources, target)
    if target.printer is not None:
        return target.printer(kernels).encode()
    whole = _key(target, segments, *keys)
    cached = store.get(whole)
    if cached is not None:
        return cached
    link = target.linker() if target.linker is not None else None
    codes = _bitcodes(kernels, keys, target, store, processes or _cores())
    result = _emitted(codes, segments, target)
    result = link(result) if link is not None else result
    missing = undefined_symbols(result)
    if missing:
        raise InternalError(f"the object for {target.name} leaves {', '.join(sorted(missing))} undefined")
    store.put(whole, result)
    store.prune()
    return result


def assembly(sources: Iterable[KernelSource], segments: str, target: Target, store: Cache | None = None) -> str:
    """The same code as text, for people and tests."""
    store = store if store is not None else Cache(cache_directory())
    kernels, keys = _keyed(sources, target)
    if target.printer is not None:
        return target.printer(kernels)
    machine = _machine(target)
    return machine.emit_assembly(_linked(_bitcodes(kernels, keys, target, store, _cores()), segments, target, machine))


def _keyed(sources: Iterable[KernelSource], target: Target) -> tuple[list[KernelSource], list[str]]:
    """Distinct kernels in the order of their names, and what each is found by in the cache."""
    distinct = {s.name: s for s in sources}
    kernels = [distinct[name] for name in sorted(distinct)]
    return kernels, [_key(target, k.name, k.source, repr(k.parameters), str(k.loops)) for k in kernels]


def _key(target: Target, *parts: str) -> str:
    settings = (target.name, target.triple, target.cpu, target.features, str(target.lanes), repr(target.attributes))
    text = "\0".join((code_version(), *settings, *parts))
    return hashlib.sha256(text.encode()).hexdigest()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---------------------------------------------------------------------- kernels
def _bitcodes(
    kernels: Sequence[KernelSource], keys: Sequence[str], target: Target, store: Cache, processes: int
) -> list[bytes]:
    """Optimized bitcode of every kernel, from the cache or fresh."""
    found = [store.get(key) for key in keys]
    absent = [i for i, code in enumerate(found) if code is None]
    fresh = _compiled([kernels[i] for i in absent], target, processes)
    for i, code in zip(absent, fresh, strict=True):
        store.put(keys[i], code)
        found[i] = code
    return [code for code in found if code is not None]


_inherited: list[tuple[KernelSource, Target]] = []  # what forked workers compile: namespaces cannot be sent to them


def _compiled(kernels: list[KernelSource], target: Target, processes: int) -> list[bytes]:
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    if processes < 2 or len(kernels) < FEW_JOBS or not can_fork:
        return [_optimized(kernel, target) for kernel in kernels]
    first = _optimized(kernels[0], target)  # Numba is warm when the workers inherit it
    _inherited[:] = [(kernel, target) for kernel in kernels[1:]]
    try:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(min(processes, len(_inherited)), mp_context=context) as pool:
            results = list(pool.map(_work, range(len(_inherited))))
    finally:
        _inherited.clear()
    codes = [first]
    for result in results:
        if isinstance(result, str):
            raise InternalError(result)
        codes.append(result)
    return codes


def _work(number: int) -> bytes | str:
    """In a worker: bitcode, or the message of a failure."""
    try:
        return _optimized(*_inherited[number])
    except InternalError as error:
        return str(error)


def _optimized(source: KernelSource, target: Target) -> bytes:
    """One kernel's bitcode, optimized for the target."""
    machine = _machine(target)
    module = llvm.parse_assembly(translate(source))
    if target.entry is not None:
        module.get_function(source.name).name = f"{source.name}_thread"
        module.link_in(llvm.parse_assembly(target.entry(source)))
    _keep_only(module, {source.name})
    text = _attributed(_placed(str(module), target.private), target)
    module = _improved(text, target, machine, vectorize=True)
    if target.forbidden and re.search(target.forbidden, machine.emit_assembly(module.clone())):
        # LLVM only prefers a width: of mixed element types, or of strides, it makes wider vectors.
        module = _improved(text, target, machine, vectorize=False)
    left = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    if left:
        raise InternalError(f"kernel `{source.name}` calls {', '.join(left)}, which no target has", source.source)
    return module.as_bitcode()


def _improved(text: str, target: Target, machine: llvm.TargetMachine, vectorize: bool) -> llvm.ModuleRef:
    """A module through LLVM's whole pipeline; `vectorize`: also what the source does not write as vectors."""
    module = llvm.parse_assembly(text)
    _settle(module, target, machine)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = vectorize
    options.slp_vectorization = vectorize
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def _attributed(text: str, target: Target) -> str:
    """Every function gets the target's attributes, and is not to call memset and its like."""
    mine = " ".join(["nounwind", '"no-builtins"', *(f'"{k}"="{v}"' for k, v in target.attributes)])
    text = re.sub(r"^(define .*?)( !\S+.*)? \{$", r"\1 #9000\2 {", text, flags=re.MULTILINE)
    return f"{text}\nattributes #9000 = {{ {mine} }}\n"


def _placed(text: str, space: int) -> str:
    """A thread's own memory in the address space that the target has for it. Its uses go on taking plain pointers, and
    LLVM sees through them.

    %x = alloca T    →    %x.own = alloca T, addrspace(5)
                          %x = addrspacecast ptr addrspace(5) %x.own to ptr
    """
    if not space:
        return text
    cast = rf"\1\2 = addrspacecast ptr addrspace({space}) \2.own to ptr"
    return re.sub(
        r'^( *)(%[^\s"]+) = alloca (.*)$',
        rf"\1\2.own = alloca \3, addrspace({space})\n{cast}",
        text,
        flags=re.MULTILINE,
    )


def _keep_only(module: llvm.ModuleRef, exported: set[str]) -> None:
    """Make everything but the exported functions internal, and inlined unless it says otherwise."""
    for function in module.functions:
        if not function.is_declaration and function.name not in exported:
            function.linkage = "internal"
            if not any(b"noinline" in group for group in function.attributes):
                function.add_function_attribute("alwaysinline")
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"


# ---------------------------------------------------------------------- objects
@once
def _start_llvm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(target: Target) -> llvm.TargetMachine:
    _start_llvm()
    described = llvm.Target.from_triple(target.triple)
    return described.create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


def _settle(module: llvm.ModuleRef, target: Target, machine: llvm.TargetMachine) -> None:
    module.triple = target.triple
    module.data_layout = str(machine.target_data)


def _linked(codes: Sequence[bytes], segments: str, target: Target, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module = llvm.parse_assembly(_attributed(segments, target))
    _settle(module, target, machine)
    for code in codes:
        module.link_in(llvm.parse_bitcode(code))
    module.verify()
    return module


def _emitted(codes: Sequence[bytes], segments: str, target: Target) -> bytes:
    machine = _machine(target)
    module = _linked(codes, segments, target, machine)
    return machine.emit_assembly(module).encode() if target.text else machine.emit_object(module)
