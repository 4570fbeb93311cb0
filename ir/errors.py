"""What can go wrong inside the compiler: a bug, a gradient that does not exist, a tool that is not installed."""

from __future__ import annotations

from alphac.ir.span import Span


class InternalError(Exception):
    """A bug in the compiler, never the user's fault. `ir` is the text of the IR it was found in ("" if none)."""

    def __init__(self, message: str, ir: str = "") -> None:
        super().__init__(f"{message}\n\n{ir}" if ir else message)
        self.message = message
        self.ir = ir


class NotDifferentiableError(Exception):
    """A gradient was asked for through an op that has none.

    `op` is the op's name, `reason` why it has no gradient, `span` where it stands, and `path` the named values by which
    the learned value reaches it, the learned value first.
    """

    def __init__(self, op: str, reason: str, span: Span | None, path: tuple[str, ...]) -> None:
        super().__init__(f"`{op}` has no gradient: {reason}")
        self.op = op
        self.reason = reason
        self.span = span
        self.path = path

    @property
    def help(self) -> str:
        """One line that says how the gradient got there, and what cuts it off."""
        cut = "`stop_gradient` cuts a path on purpose"
        if not self.path:
            return cut
        start, *through = (f"`{name}`" for name in self.path)
        return f"the gradient comes here from {start}{' through ' if through else ''}{', '.join(through)}; {cut}"


class ToolMissing(Exception):
    """A target needs a program that this machine lacks; `help`: what to install."""

    def __init__(self, message: str, help: str) -> None:
        super().__init__(message)
        self.message, self.help = message, help
