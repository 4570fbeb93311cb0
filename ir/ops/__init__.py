"""Every op of the IR. A module of this folder is imported by being here; what it defines lands in DEFINITIONS."""

import importlib
import pkgutil

from alphac.ir.ops.define import DEFINITIONS, Definition, NotDifferentiable, TypeRuleError, definition

__all__ = ["DEFINITIONS", "Definition", "NotDifferentiable", "TypeRuleError", "definition"]

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
