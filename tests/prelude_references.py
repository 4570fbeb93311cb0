"""What the prelude is compared with: small systems run by the interpreter, and the same mathematics in NumPy, float64.

Nothing here is taken from the prelude: optimizers, schedules and layers are written from their papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gradcheck import differences
from numpy.typing import ArrayLike, NDArray

from alphac import pipeline
from alphac.frontend.elaborate import elaborate
from alphac.frontend.parse import parse
from alphac.ir.interpret import interpret

Array = NDArray[Any]
Arithmetic = Literal["f64", "exact"]


# ------------------------------------------------------------------------------------------------------- small systems
class Small:
    """A system elaborated, differentiated, expanded and simplified, with the current versions of its states.

    arithmetic   "f64": references that compute all floats in float64; "exact": the bits of every target
    columns      the arrays of its data by column; they are written to `d.npz` in the directory
    overrides    what `--set` gives
    """

    def __init__(
        self,
        text: str,
        directory: Path,
        columns: Mapping[str, Array] | None = None,
        *,
        arithmetic: Arithmetic = "f64",
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.columns = dict(columns or {})
        if self.columns:
            np.savez(directory / "d.npz", **self.columns)  # pyright: ignore[reportArgumentType]
        elaborated = elaborate(parse(text, "s.alpha"), overrides=dict(overrides or {}), directory=directory)
        self.module = pipeline.simplify(pipeline.differentiate(elaborated))
        self.exact = arithmetic == "exact"
        self.steps = 0
        self.states: dict[str, Array] = {}
        self.states = {name: value for (_, name), value in self.run("initialize").items()}

    def run(self, name: str, rows: slice = slice(None), **given: Any) -> dict[tuple[str, str], Array]:
        """The results of a function, by kind and name of their ports."""
        function = self.module.functions[name]
        inputs: list[ArrayLike] = []
        for port, value in zip(function.arguments, function.block.arguments, strict=True):
            if port.kind == "state":
                inputs.append(self.states[port.name])
            elif port.kind == "column":
                inputs.append(self.columns[port.name.rpartition(".")[2]][rows])
            elif port.kind == "input":
                inputs.append(given[port.name])
            else:
                inputs.append(np.asarray(given[port.kind]).astype(value.type.dtype.storage))
        results = interpret(function, inputs, exact=self.exact, precision=None if self.exact else "f64")
        return {(p.kind, p.name): r for p, r in zip(function.results, results, strict=True)}

    def step(self, rows: slice = slice(None)) -> dict[str, float]:
        """One training step; its losses by name."""
        results = self.run("step", rows, step=self.steps)
        self.steps += 1
        self.states.update({name: value for (kind, name), value in results.items() if kind == "state"})
        return {name: float(value) for (kind, name), value in results.items() if kind == "loss"}

    def region(self, name: str, **inputs: ArrayLike) -> Array:
        """The one output of a region of the batch."""
        (output,) = self.run(f"region.{name}", slice(None), **inputs).values()
        return output


def frame(dims: Mapping[str, int]) -> str:
    """The head of a system with these dims; `batch` is cut into two shards."""
    declared = ", ".join(f"{name} = {size}" for name, size in dims.items())
    grain = "grain 2 of batch\n" if "batch" in dims else ""
    return f"system s\ndim {declared}\n{grain}"


class Formula:
    """An expression of the language as a function of arrays.

    dims, inputs   `{"rows": 3}`, `{"x": "f64[rows]"}`: the inputs' types as the language writes them
    result         the expression's type
    declarations   what else the system declares
    """

    def __init__(
        self,
        expression: str,
        result: str,
        dims: Mapping[str, int],
        inputs: Mapping[str, str],
        directory: Path,
        declarations: str = "",
    ) -> None:
        self.expression, self.result, self.inputs, self.directory = expression, result, dict(inputs), directory
        self.head = frame(dims) + declarations

    def value(self, *arrays: ArrayLike, arithmetic: Arithmetic = "f64") -> Array:
        """The expression's value."""
        text = self.head + "".join(f"state {name}: {type_} = {_zero(type_)}\n" for name, type_ in self.inputs.items())
        text += f"state found: {self.result} = {_zero(self.result)}\ntransition {{ found' = {self.expression} }}\n"
        system = Small(text, self.directory, arithmetic=arithmetic)
        system.states.update({name: np.asarray(a) for name, a in zip(self.inputs, arrays, strict=True)})
        system.step()
        return system.states["found"]

    def gradients(self, weight: ArrayLike, *arrays: ArrayLike, arithmetic: Arithmetic = "f64") -> dict[str, Array]:
        """The gradient of `sum(weight * expression)` with respect to every float input: what `sgd(1)` goes by."""
        given = dict(zip(self.inputs, arrays, strict=True))
        learned = [name for name, type_ in self.inputs.items() if type_.startswith("f")]
        text = self.head + f"state weight: {self.result} = 0\n"
        for name, type_ in self.inputs.items():
            text += f"{'param' if name in learned else 'state'} {name}: {type_} = {_zero(type_)}\n"
        text += f"learn {', '.join(learned)} with sgd(1) minimizing {{ sum(weight * ({self.expression})) }}\n"
        system = Small(text, self.directory, arithmetic=arithmetic)
        system.states.update({"weight": np.asarray(weight), **{n: np.asarray(a) for n, a in given.items()}})
        system.step()
        return {name: np.asarray(given[name]) - system.states[name] for name in learned}


def _zero(type_: str) -> str:
    return "false" if type_.startswith("bool") else "0"


def check_formula(
    formula: Formula, reference: Callable[..., Array], arrays: Sequence[Array], *, tolerance: float = 1e-12
) -> None:
    """A formula's value is the reference's, and its gradients are the reference's central differences."""
    wanted = np.asarray(reference(*arrays))
    np.testing.assert_allclose(formula.value(*arrays), wanted, rtol=tolerance, atol=tolerance)
    weight = np.random.default_rng(9).uniform(-1, 1, wanted.shape)
    found = formula.gradients(weight, *arrays)
    for place, (name, array) in enumerate(zip(formula.inputs, arrays, strict=True)):
        if array.dtype.kind == "f":
            slopes = differences(lambda values: float((weight * reference(*values)).sum()), arrays, place)
            np.testing.assert_allclose(found[name], slopes, rtol=1e-6, atol=1e-8, err_msg=name)


# ---------------------------------------------------------------------------------------------------------- optimizers
Tensors = dict[str, Array]


class Rule:
    """An optimizer with its memory: `step(parameters, gradients)` makes the parameters' next versions."""

    def __init__(self, update: Callable[[Array, Array, dict[str, Array], int], Array]) -> None:
        self.update = update
        self.memory: dict[str, dict[str, Array]] = {}
        self.steps = 0

    def step(self, parameters: Tensors, gradients: Tensors) -> Tensors:
        self.steps += 1
        return {
            name: self.update(p, gradients[name], self.memory.setdefault(name, {}), self.steps)
            for name, p in parameters.items()
        }


def sgd(rate: float) -> Rule:
    return Rule(lambda p, g, memory, t: p - rate * g)


def momentum(rate: float, mu: float = 0.9, *, nesterov: bool = False) -> Rule:
    def update(p: Array, g: Array, memory: dict[str, Array], t: int) -> Array:
        v = memory["v"] = mu * memory.get("v", np.zeros_like(p)) + g
        return p - rate * (g + mu * v if nesterov else v)

    return Rule(update)


def adam(rate: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, *, decay: float = 0) -> Rule:
    """Kingma & Ba, with the weight decay of Loshchilov & Hutter."""

    def update(p: Array, g: Array, memory: dict[str, Array], t: int) -> Array:
        m = memory["m"] = beta1 * memory.get("m", np.zeros_like(p)) + (1 - beta1) * g
        v = memory["v"] = beta2 * memory.get("v", np.zeros_like(p)) + (1 - beta2) * g**2
        return p - rate * (m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps) + decay * p)

    return Rule(update)


def adagrad(rate: float, eps: float = 1e-10) -> Rule:
    def update(p: Array, g: Array, memory: dict[str, Array], t: int) -> Array:
        memory["s"] = memory.get("s", np.zeros_like(p)) + g**2
        return p - rate * g / (np.sqrt(memory["s"]) + eps)

    return Rule(update)


def rmsprop(rate: float, decay: float = 0.99, eps: float = 1e-8) -> Rule:
    def update(p: Array, g: Array, memory: dict[str, Array], t: int) -> Array:
        memory["s"] = decay * memory.get("s", np.zeros_like(p)) + (1 - decay) * g**2
        return p - rate * g / (np.sqrt(memory["s"]) + eps)

    return Rule(update)


def lion(rate: float, beta1: float = 0.9, beta2: float = 0.99, decay: float = 0) -> Rule:
    """Chen et al., algorithm 2."""

    def update(p: Array, g: Array, memory: dict[str, Array], t: int) -> Array:
        m = memory.get("m", np.zeros_like(p))
        memory["m"] = beta2 * m + (1 - beta2) * g
        return p - rate * (np.sign(beta1 * m + (1 - beta1) * g) + decay * p)

    return Rule(update)


class Clipped(Rule):
    """The gradient of all parameters together at most `limit` long, as `torch.nn.utils.clip_grad_norm_` does it."""

    def __init__(self, limit: float, rule: Rule) -> None:
        self.limit, self.rule = limit, rule

    def step(self, parameters: Tensors, gradients: Tensors) -> Tensors:
        length = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
        scale = min(1.0, self.limit / (length + 1e-6))
        return self.rule.step(parameters, {name: g * scale for name, g in gradients.items()})


class Decayed(Rule):
    """Weight decay as part of the gradient."""

    def __init__(self, decay: float, rule: Rule) -> None:
        self.decay, self.rule = decay, rule

    def step(self, parameters: Tensors, gradients: Tensors) -> Tensors:
        return self.rule.step(parameters, {name: g + self.decay * parameters[name] for name, g in gradients.items()})


# ----------------------------------------------------------------------------------------------------------- schedules
def warmed(rate: float, step: int, warmup: int) -> float:
    return rate * min(1.0, (step + 1) / warmup) if warmup else rate


def progress(step: int, steps: int, warmup: int) -> float:
    """The part of the way down from the end of the warm-up to `steps`, 0 to 1."""
    return min(max(step - warmup, 0) / max(steps - warmup, 1), 1.0)


def cosine(step: int, peak: float, steps: int, warmup: int = 0, low: float = 0) -> float:
    done = progress(step, steps, warmup)
    return warmed(low + (peak - low) * (1 + math.cos(math.pi * done)) / 2, step, warmup)


def linear(step: int, peak: float, steps: int, warmup: int = 0, low: float = 0) -> float:
    done = progress(step, steps, warmup)
    return warmed(peak * (1 - done) + low * done, step, warmup)


# -------------------------------------------------------------------------------------------------- losses and layers
def log_softmax(x: Array, axis: int = -1) -> Array:
    top = x.max(axis, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis, keepdims=True))


def cross_entropy(logits: Array, label: Array, smoothing: float = 0) -> Array:
    """Against a distribution: `smoothing` of it spread evenly, the rest on the label. Logits [examples, classes]."""
    wanted = np.full(logits.shape, smoothing / logits.shape[-1])
    wanted[np.arange(len(label)), label] += 1 - smoothing
    return -(wanted * log_softmax(logits)).sum(-1)


def binary_cross_entropy(logit: Array, target: Array) -> Array:
    """-t log σ(z) - (1 - t) log(1 - σ(z)), both logarithms written so that nothing overflows."""
    return target * np.logaddexp(0, -logit) + (1 - target) * np.logaddexp(0, logit)


def standardized(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def attention(q: Array, k: Array, v: Array, allowed: Array) -> Array:
    """[heads, time, head] each; `allowed` [time, time]."""
    score = np.where(allowed, np.einsum("hqd, hkd -> hqk", q, k) / math.sqrt(q.shape[-1]), -np.inf)
    return np.einsum("hqk, hkd -> hqd", np.exp(log_softmax(score)), v)


def pooled(x: Array, size: int, stride: int, padding: int, how: Callable[..., Array], fill: float) -> Array:
    """Along the last axis, window by window."""
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(padding, padding)], constant_values=fill)
    starts = range(0, x.shape[-1] - size + 1, stride)
    return np.stack([how(x[..., at : at + size], axis=-1) for at in starts], axis=-1)


def conv2d(x: Array, kernel: Array, stride: int, padding: int, dilation: int) -> Array:
    """x [rows, columns, groups, inside], kernel [down, across, groups, inside, made]: the definition, tap by tap."""
    x = np.pad(x, [(padding, padding)] * 2 + [(0, 0)] * 2)
    down, across = kernel.shape[:2]
    tall = (x.shape[0] - dilation * (down - 1) - 1) // stride + 1
    wide = (x.shape[1] - dilation * (across - 1) - 1) // stride + 1
    out = np.zeros((tall, wide, kernel.shape[2], kernel.shape[4]))
    for r, c in np.ndindex(down, across):
        seen = x[dilation * r :, dilation * c :][: stride * tall : stride, : stride * wide : stride][:tall, :wide]
        out += np.einsum("ijgn, gnm -> ijgm", seen, kernel[r, c])
    return out
