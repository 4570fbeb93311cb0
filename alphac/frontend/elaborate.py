"""From syntax tree to IR: read top to bottom, this is what a system becomes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alphac.ir.ops  # noqa: F401  (fills the table of ops)
from alphac.diagnostics import Diagnostics, fail
from alphac.frontend import builtins, builtins_move, builtins_random, columns, evaluation, learning, regions, tree  # noqa: F401  (fill the table of functions)
from alphac.frontend.expressions import evaluate
from alphac.frontend.scope import Context, Scope
from alphac.frontend.system import System
from alphac.frontend.values import describe, is_known, number
from alphac.ir.core import Module, Port, State, Training, Value


def elaborate(root: tree.System, *, overrides: dict[str, str], directory: Path) -> Module:
    """The IR of a system.

    overrides  values for `let`s (and `seed`), as `--set` gives them
    directory  where the paths of data and of `use`d files start
    Raises Diagnostics: all that one phase found.
    """
    with _deep():
        return _Elaboration(System(root, dict(overrides), directory)).module()


@contextmanager
def _deep() -> Iterator[None]:
    """Room for expressions as deep as the parser lets through, inlined functions included."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 40_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class _Elaboration:
    def __init__(self, system: System) -> None:
        self.system = system
        self.read: set[str] = set()
        self.transitions = 0

    def module(self) -> Module:
        system = self.system
        name = system.one(tree.SystemName, "system")
        if name is None:
            self._note(fail("E106", "the file does not say which system it is", None, "begin it with `system NAME`"))
        self._attempt(self._frame)
        system.check_overrides()
        self._stop()
        assert name is not None
        module = Module(name.name, system.grain, system.seed)
        for node in system.statements:
            self._attempt(lambda node=node: self._declare(node, module))
        self._stop()
        self._step(module)
        for node in system.statements:
            if isinstance(node, tree.Evaluate):
                self._attempt(lambda node=node: self._evaluate(node, module))
        self._stop()
        self._initialize(module)
        self._attempt(self._unused)
        self._attempt(lambda: self._training(module))
        self._stop()
        for path in system.state_order():
            info = system.states[path]
            module.states[path] = State(path, info.type, info.kind)
        for node in system.statements:
            if isinstance(node, tree.Data):
                self._attempt(lambda node=node: self._data(node, module))
        self._stop()
        module.regions = dict(system.regions)
        return module

    # ------------------------------------------------------------------------------------------------------- problems
    def _note(self, error: Diagnostics) -> None:
        known = {(d.code, d.span, d.message) for d in self.system.problems}
        self.system.problems += [d for d in error.diagnostics if (d.code, d.span, d.message) not in known]

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do a part; note what is wrong with it and go on, so that one run shows several mistakes."""
        try:
            work()
        except Diagnostics as error:
            self._note(error)

    def _stop(self) -> None:
        if self.system.problems:
            raise Diagnostics(self.system.problems)

    # -------------------------------------------------------------------------------------------------------- the parts
    def _frame(self) -> None:
        """Seed, numeric mode, contracts."""
        system = self.system
        node = system.one(tree.Seed, "seed")
        if node is not None:
            system.seed = _whole(system, node.value, "a seed")
        if "seed" in system.overrides and not isinstance(system.declarations.get("seed"), tree.Let):
            text = system.overrides["seed"]
            if not text.isdigit() or int(text) >= 1 << 63:
                raise fail("E139", f"`--set seed={text}` is no seed", None, "a seed is a whole number: 0, 1, 2, …")
            system.seed = int(text)
        for statement in system.statements:
            if isinstance(statement, tree.Contract):
                help = "remove it: the synchronous contract is the default"
                message = f"the contract `{statement.name}` is not available in this version"
                self._note(fail("E137", message, statement.span, help))
            elif isinstance(statement, tree.Numeric) and statement.mode != "exact":
                help = "`numeric fast(tolerance = …)` stands at a region; the system is `numeric exact`"
                self._note(fail("E140", f"a whole system cannot be `numeric {statement.mode}`", statement.span, help))

    def _declare(self, node: tree.Node, module: Module) -> None:
        """Resolve a declaration; regions become functions."""
        system = self.system
        context = Context(system, "declare")
        scope = system.scope
        if isinstance(node, (tree.Dims, tree.Declare)):
            for entry in node.entries:
                self._attempt(lambda entry=entry: system.lookup(entry.name, entry.span, scope, context))
        elif isinstance(node, tree.Let):
            system.lookup(node.name, node.span, scope, context)
        elif isinstance(node, tree.Data):
            columns.part(system, node.name)
        elif isinstance(node, tree.Region):
            function, reads = regions.elaborate_region(system, node)
            self.read |= reads
            if function is not None:
                module.functions[function.name] = function

    def _step(self, module: Module) -> None:
        """One training step: every `learn` and `transition`, in order."""
        system = self.system
        context = Context(system, "step")
        training = system.one(tree.Train, "train")
        context.masked = training is not None and training.keep_ragged
        losses: list[tuple[Port, Value]] = []
        changed: dict[str, None] = {}
        statements = [n for n in system.statements if isinstance(n, (tree.Learn, tree.Transition, tree.Together))]
        for node in statements:

            def work(node: tree.Node = node) -> None:
                updates = self._updates(context, node, losses)
                context.versions.update(updates)
                changed.update(dict.fromkeys(updates))

            self._attempt(work)
        self._stop()
        self.read |= context.reading
        results = [(Port("state", p), context.versions[p]) for p in system.state_order() if p in changed]
        module.functions["step"] = context.function([*results, *losses])

    def _updates(self, context: Context, node: tree.Node, losses: list[tuple[Port, Value]]) -> dict[str, Value]:
        if isinstance(node, tree.Learn):
            return learning.learn(context, node, losses, self._label(node, losses))
        if isinstance(node, tree.Transition):
            self.transitions += 1
            return learning.transition(context, node, f"transition.{self.transitions}")
        assert isinstance(node, tree.Together)
        found: dict[str, Value] = {}
        for inner in node.statements:
            for path, value in self._updates(context, inner, losses).items():
                if path in found:
                    help = "statements that stand `together` change different states"
                    raise fail("E133", f"`{path}` gets two next versions", inner.span, help)
                found[path] = value
        return found

    def _label(self, node: tree.Learn, losses: list[tuple[Port, Value]]) -> str:
        taken = {port.name for port, _ in losses}
        if node.label is not None:
            if node.label in taken:
                raise fail("E105", f"a second loss named `{node.label}`", node.span, "give it another name")
            return node.label
        return next(n for n in ("loss", *(f"loss_{i}" for i in range(2, 1000))) if n not in taken)

    def _evaluate(self, node: tree.Evaluate, module: Module) -> None:
        if node.name in module.evaluations:
            raise fail("E105", f"a second `evaluate {node.name}`", node.span, "give it another name")
        declared, batch, finish, reads = evaluation.elaborate_evaluate(self.system, node)
        self.read |= reads
        module.evaluations[node.name] = declared
        module.functions[batch.name] = batch
        module.functions[finish.name] = finish

    def _initialize(self, module: Module) -> None:
        """The first version of every state."""
        system = self.system
        context = Context(system, "initialize")
        for path in system.state_order():

            def work(path: str = path) -> None:
                context.versions[path] = learning.initial_value(context, system.states[path])

            self._attempt(work)
        self._stop()
        results = [(Port("state", p), context.versions[p]) for p in system.state_order()]
        module.functions = {"initialize": context.function(results), **module.functions}
        self.read |= context.reading

    def _unused(self) -> None:
        for path, info in self.system.states.items():
            if path not in self.read and info.kind == "param":
                self._note(fail("E130", f"`{path}` is never used", info.span, "remove it, or use it in a region"))

    def _training(self, module: Module) -> None:
        system = self.system
        node = system.one(tree.Train, "train")
        if node is None:
            return
        if not isinstance(system.declarations.get(node.data.id), tree.Data):
            raise fail(
                "E138", f"`{node.data.id}` is not data", node.data.span, 'declare it: `data NAME from "FILE" { … }`'
            )
        if not any(isinstance(n, (tree.Learn, tree.Transition, tree.Together)) for n in system.statements):
            raise fail("E132", "there is nothing to train", node.span, "write a `learn` or a `transition`")
        amount = _whole(system, node.amount, f"the number of {node.unit}s", least=1)
        if len(node.checkpoints) > 1:
            raise fail("E138", "checkpoints are said twice", node.checkpoints[1].span, "say it once")
        counts = {"epoch": 0, "step": 0}
        for checkpoint in node.checkpoints:
            every = checkpoint.every
            counts[checkpoint.unit] = (
                1 if every is None else _whole(system, every, "the distance of checkpoints", least=1)
            )
        rows, batch = columns.part(system, node.data.id).rows, system.grain.size if system.grain is not None else 1
        hold = columns.finished(system, node.data.id).held_out
        if int(rows * (1 - hold)) < batch and not node.keep_ragged:
            message = (
                f"`{node.data.id}` has {int(rows * (1 - hold))} examples to train on, fewer than one batch of {batch}"
            )
            raise fail("E306", message, node.span, "make the batch smaller, or write `keep ragged batch`")
        module.training = Training(
            node.data.id,
            epochs=amount if node.unit == "epoch" else 0,
            steps=amount if node.unit == "step" else 0,
            checkpoint_epochs=counts["epoch"],
            checkpoint_steps=counts["step"],
            keep_ragged=node.keep_ragged,
        )

    def _data(self, node: tree.Data, module: Module) -> None:
        module.data[node.name] = columns.finished(self.system, node.name)


def _whole(system: System, node: tree.Expression, what: str, least: int = 0) -> int:
    """A number that the statement needs, known when compiling."""
    value: Any = evaluate(Context(system, "frame"), node, Scope(None, ""))
    known = number(value) if is_known(value) else None
    if not isinstance(known, int) or isinstance(known, bool) or known < least:
        raise fail(
            "E138", f"{what} is a whole number of at least {least}, not {describe(value)}", node.span, "write a number"
        )
    return known
