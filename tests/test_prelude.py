"""Everything in the prelude against NumPy in float64, and against PyTorch where it defines the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import prelude_references as reference
import pytest
from prelude_references import Arithmetic, Array, Clipped, Decayed, Formula, Rule, Small, check_formula, frame
from scipy import stats


def draw(*shape: int, seed: int = 0, scale: float = 1) -> Array:
    return scale * np.random.default_rng([seed, *shape]).standard_normal(shape)


# ---------------------------------------------------------------------------------------------------------- optimizers
EXAMPLES, FEATURES = 8, 3
OPTIMIZERS: dict[str, Callable[[], Rule]] = {
    "sgd(0.1)": lambda: reference.sgd(0.1),
    "momentum(0.1)": lambda: reference.momentum(0.1),
    "momentum(0.05, momentum = 0.5)": lambda: reference.momentum(0.05, 0.5),
    "nesterov(0.1)": lambda: reference.momentum(0.1, nesterov=True),
    "nesterov(0.05, 0.5)": lambda: reference.momentum(0.05, 0.5, nesterov=True),
    "adam(0.1)": lambda: reference.adam(0.1),
    "adam(0.2, 0.8, 0.9, eps = 0.01)": lambda: reference.adam(0.2, 0.8, 0.9, 0.01),
    "adamw(0.1)": lambda: reference.adam(0.1, decay=0.01),
    "adamw(0.1, decay = 0.5, beta1 = 0.7)": lambda: reference.adam(0.1, 0.7, decay=0.5),
    "adagrad(0.5)": lambda: reference.adagrad(0.5),
    "adagrad(0.5, eps = 0.1)": lambda: reference.adagrad(0.5, 0.1),
    "rmsprop(0.01)": lambda: reference.rmsprop(0.01),
    "rmsprop(0.1, decay = 0.5, eps = 0.1)": lambda: reference.rmsprop(0.1, 0.5, 0.1),
    "lion(0.01)": lambda: reference.lion(0.01),
    "lion(0.02, 0.5, 0.8, decay = 0.3)": lambda: reference.lion(0.02, 0.5, 0.8, 0.3),
    "clipped(0.5, sgd(0.1))": lambda: Clipped(0.5, reference.sgd(0.1)),
    "clipped(100, nesterov(0.1))": lambda: Clipped(100, reference.momentum(0.1, nesterov=True)),
    "clipped(0.5, adamw(0.1))": lambda: Clipped(0.5, reference.adam(0.1, decay=0.01)),
    "decayed(0.3, sgd(0.1))": lambda: Decayed(0.3, reference.sgd(0.1)),
    "decayed(0.3, rmsprop(0.01))": lambda: Decayed(0.3, reference.rmsprop(0.01)),
    "clipped(0.5, decayed(0.3, adam(0.1)))": lambda: Clipped(0.5, Decayed(0.3, reference.adam(0.1))),
    "decayed(0.3, clipped(0.5, momentum(0.1)))": lambda: Decayed(0.3, Clipped(0.5, reference.momentum(0.1))),
}


def regression(dtype: str, optimizer: str) -> tuple[str, dict[str, Array]]:
    """A line through points: a vector and a number are learned."""
    x = draw(EXAMPLES, FEATURES)
    y = x @ np.array([1, -2, 0.5]) + 3 + 0.1 * draw(EXAMPLES)
    text = frame({"features": FEATURES, "batch": EXAMPLES})
    text += f'data d from "d.npz" {{\n x: {dtype}[features] = x\n y: {dtype}[] = y\n}}\n'
    text += f"param w: {dtype}[features] = normal(0.5)\nparam b: {dtype}[] = 0.25\n"
    text += f"learn w, b with {optimizer} minimizing {{ mean((x @ w + b - y) ** 2) }}\n"
    numpy_type = np.float64 if dtype == "f64" else np.float32
    return text, {"x": x.astype(numpy_type), "y": y.astype(numpy_type)}


def gradients(p: Mapping[str, Array], data: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
    x, y = (data[name].astype(np.float64) for name in "xy")
    rest = x @ p["w"] + p["b"] - y
    return float((rest**2).mean()), {"w": 2 * x.T @ rest / EXAMPLES, "b": np.asarray(2 * rest.mean())}


def check_optimizer(optimizer: str, dtype: str, arithmetic: Arithmetic, tolerance: float, directory: Path) -> None:
    text, data = regression(dtype, optimizer)
    system = Small(text, directory, data, arithmetic=arithmetic)
    rule = OPTIMIZERS[optimizer]()
    p = {name: system.states[name].astype(np.float64) for name in ("w", "b")}
    for _ in range(5):
        loss, slopes = gradients(p, data)
        assert system.step()["loss"] == pytest.approx(loss, rel=tolerance)
        p = rule.step(p, slopes)
        for name, wanted in p.items():
            np.testing.assert_allclose(system.states[name], wanted, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer(optimizer: str, tmp_path: Path) -> None:
    check_optimizer(optimizer, "f64", "f64", 1e-12, tmp_path)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_in_single_precision(optimizer: str, tmp_path: Path) -> None:
    check_optimizer(optimizer, "f32", "exact", 1e-5, tmp_path)


def peers() -> dict[str, tuple[float, Callable[..., Any]]]:
    """What PyTorch defines identically: the longest gradient, and the optimizer of a list of parameters."""
    from torch import optim

    return {
        "sgd(0.1)": (math.inf, partial(optim.SGD, lr=0.1)),
        "momentum(0.1)": (math.inf, partial(optim.SGD, lr=0.1, momentum=0.9)),
        "nesterov(0.1)": (math.inf, partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True)),
        "adam(0.2, 0.8, 0.9, eps = 0.01)": (math.inf, partial(optim.Adam, lr=0.2, betas=(0.8, 0.9), eps=0.01)),
        "adamw(0.1)": (math.inf, partial(optim.AdamW, lr=0.1)),
        "adamw(0.1, decay = 0.5, beta1 = 0.7)": (
            math.inf,
            partial(optim.AdamW, lr=0.1, betas=(0.7, 0.999), weight_decay=0.5),
        ),
        "adagrad(0.5, eps = 0.1)": (math.inf, partial(optim.Adagrad, lr=0.5, eps=0.1)),
        "rmsprop(0.1, decay = 0.5, eps = 0.1)": (math.inf, partial(optim.RMSprop, lr=0.1, alpha=0.5, eps=0.1)),
        "clipped(0.5, adamw(0.1))": (0.5, partial(optim.AdamW, lr=0.1)),
        "decayed(0.3, rmsprop(0.01))": (math.inf, partial(optim.RMSprop, lr=0.01, weight_decay=0.3)),
        "clipped(0.5, decayed(0.3, adam(0.1)))": (0.5, partial(optim.Adam, lr=0.1, weight_decay=0.3)),
    }


@pytest.mark.peers
def test_optimizers_are_those_of_pytorch(tmp_path: Path) -> None:
    import torch

    for optimizer, (limit, make) in peers().items():
        source, data = regression("f64", optimizer)
        system = Small(source, tmp_path, data)
        learned = [torch.tensor(system.states[n], dtype=torch.float64, requires_grad=True) for n in ("w", "b")]
        rule = make(learned)
        x, y = (torch.tensor(data[n]) for n in "xy")
        for _ in range(5):
            system.step()
            rule.zero_grad()
            ((x @ learned[0] + learned[1] - y) ** 2).mean().backward()
            torch.nn.utils.clip_grad_norm_(learned, limit)
            rule.step()
            for n, tensor in zip(("w", "b"), learned, strict=True):
                wanted = tensor.detach().numpy()
                np.testing.assert_allclose(system.states[n], wanted, rtol=1e-12, atol=1e-12, err_msg=optimizer)


# ----------------------------------------------------------------------------------------------------------- schedules
MOMENTS = [*range(14), 49, 50, 51, 99, 100, 101, 998, 999, 1000, 1001, 10**6, 2**40]
SCHEDULES: dict[str, Callable[[int], float]] = {
    "constant(0.3)": lambda t: 0.3,
    "step_decay(0.5, 3)": lambda t: 0.5 * 0.1 ** (t // 3),
    "step_decay(0.5, 7, factor = 0.5)": lambda t: 0.5 * 0.5 ** (t // 7),
    "warm_up(0.5, 10)": lambda t: 0.5 * min(1, (t + 1) / 10),
    "cosine(0.5, 1000)": lambda t: reference.cosine(t, 0.5, 1000),
    "cosine(2, 100, warmup = 10)": lambda t: reference.cosine(t, 2, 100, 10),
    "cosine(2e-3, 1000, warmup = 50, low = 1e-4)": lambda t: reference.cosine(t, 2e-3, 1000, 50, 1e-4),
    "cosine(1, 10, warmup = 10, low = 0.25)": lambda t: reference.cosine(t, 1, 10, 10, 0.25),
    "linear(0.5, 100)": lambda t: reference.linear(t, 0.5, 100),
    "linear(0.5, 1000, warmup = 50, low = 0.1)": lambda t: reference.linear(t, 0.5, 1000, 50, 0.1),
    "linear(0.5, 8, low = 1)": lambda t: reference.linear(t, 0.5, 8, 0, 1),
}


def rates(schedule: str, dtype: str, arithmetic: Arithmetic, directory: Path) -> list[float]:
    """What the schedule says at MOMENTS: the loss `b` has the slope 1, and so b goes down by the rate."""
    text = frame({"one": 1}) + f"param b: {dtype}[] = 0\nlearn b with sgd({schedule}) minimizing {{ b }}\n"
    system = Small(text, directory, arithmetic=arithmetic)
    return [-float(system.run("step", step=moment)["state", "b"]) for moment in MOMENTS]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule(schedule: str, tmp_path: Path) -> None:
    wanted = [SCHEDULES[schedule](moment) for moment in MOMENTS]
    np.testing.assert_allclose(rates(schedule, "f64", "f64", tmp_path), wanted, rtol=1e-12, atol=1e-17)
    single = rates(schedule, "f32", "exact", tmp_path)  # computed in f64, rounded where it meets the parameter
    np.testing.assert_allclose(single, wanted, rtol=1e-7, atol=1e-16)


@pytest.mark.peers
def test_schedule_is_that_of_pytorch(tmp_path: Path) -> None:
    import torch

    def theirs(kind: Callable[..., Any], **options: Any) -> list[float]:
        rule = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.5)
        schedule, found = kind(rule, **options), []
        for _ in range(14):
            found.append(rule.param_groups[0]["lr"])
            rule.step()
            schedule.step()
        return found

    kinds = torch.optim.lr_scheduler
    ours = partial(rates, dtype="f64", arithmetic="f64", directory=tmp_path)
    wanted = theirs(kinds.StepLR, step_size=3)
    np.testing.assert_allclose(ours("step_decay(0.5, 3)")[:14], wanted, rtol=1e-12)
    wanted = theirs(kinds.CosineAnnealingLR, T_max=14, eta_min=0.1)
    np.testing.assert_allclose(ours("cosine(0.5, 14, low = 0.1)")[:14], wanted, rtol=1e-12)
    wanted = theirs(kinds.LinearLR, start_factor=1.0, end_factor=0.2, total_iters=10)
    np.testing.assert_allclose(ours("linear(0.5, 10, low = 0.1)")[:14], wanted, rtol=1e-12)
    wanted = theirs(kinds.LinearLR, start_factor=0.1, end_factor=1.0, total_iters=9)
    np.testing.assert_allclose(ours("warm_up(0.5, 10)")[:14], wanted, rtol=1e-12)


# -------------------------------------------------------------------------------------------------------- initializers
SIZES = {"tall": 120, "wide": 80, "deep": 5, "few": 4, "more": 9}


def first(entries: str, directory: Path, head: str = "", **overrides: str) -> Small:
    text = frame(SIZES) + head + f"state {entries}\nstate n: i32[] = 0\ntransition {{ n' = n + 1 }}\n"
    return Small(text, directory, arithmetic="exact", overrides=overrides)


DISTRIBUTIONS = {
    "glorot": stats.uniform(-math.sqrt(6 / 200), 2 * math.sqrt(6 / 200)),
    "glorot(inputs = 10, outputs = 14)": stats.uniform(-0.5, 1),
    "glorot_normal": stats.norm(0, math.sqrt(2 / 200)),
    "he": stats.norm(0, math.sqrt(2 / 120)),
    "he(inputs = 8)": stats.norm(0, 0.5),
    "he_uniform": stats.uniform(-math.sqrt(6 / 120), 2 * math.sqrt(6 / 120)),
    "normal(3)": stats.norm(0, 3),
    "1 + normal(0.02)": stats.norm(1, 0.02),
    "uniform(-2, 5)": stats.uniform(-2, 7),
    "uniform": stats.uniform(0, 1),
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("initializer", DISTRIBUTIONS)
def test_initializer_draws_from_its_distribution(initializer: str, dtype: str, tmp_path: Path) -> None:
    if initializer == "uniform":
        initializer = "uniform()"
    (drawn, *_) = first(f"x: {dtype}[tall, wide] = {initializer}", tmp_path).states.values()
    wanted = DISTRIBUTIONS[initializer.removesuffix("()")]
    assert drawn.shape == (120, 80) and len(np.unique(drawn)) > 9400  # in f32 some come twice
    low, high = wanted.support()
    assert drawn.min() >= np.float32(low) and drawn.max() <= np.float32(high)
    assert drawn.std() == pytest.approx(wanted.std(), rel=0.02)
    assert stats.kstest(drawn.reshape(-1), wanted.cdf).pvalue > 1e-3
    a, b = drawn[:-1].reshape(-1), drawn[1:].reshape(-1)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.04  # four deviations of what independent numbers have


def test_fans_are_of_all_axes_but_the_last_and_of_the_last(tmp_path: Path) -> None:
    states = first(
        "x: f32[deep, few, wide, more] = glorot, y: f32[wide] = he, z: f32[wide, tall] = he", tmp_path
    ).states
    assert np.abs(states["x"]).max() == pytest.approx(math.sqrt(6 / (5 * 4 * 80 + 9)), rel=0.01)
    assert states["y"].std() == pytest.approx(math.sqrt(2), rel=0.25)
    assert states["z"].std() == pytest.approx(math.sqrt(2 / 80), rel=0.03)


def test_constant_initializers(tmp_path: Path) -> None:
    states = first(
        "a: f32[few, more] = zeros, b: f32[few] = ones, c: f64[more] = 1 / 3, d: f32[] = 1 / 3", tmp_path
    ).states
    assert not states["a"].any() and states["a"].shape == (4, 9)
    assert (states["b"] == 1).all() and (states["c"] == 1 / 3).all() and states["d"] == np.float32(1 / 3)


@pytest.mark.parametrize("shape", ["few, more", "more, few", "more, more_too", "wide, deep"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_orthogonal(shape: str, dtype: str, tmp_path: Path) -> None:
    head = "dim more_too = more\n"
    entries = f"x: {dtype}[{shape}] = orthogonal, y: {dtype}[{shape}] = orthogonal(gain = 3)"
    states = first(entries, tmp_path, head=head).states
    for x, gain in ((states["x"], 1), (states["y"] / 3, 3)):
        product = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
        np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-5 if dtype == "f32" else 1e-12)
        assert gain == 1 or not np.allclose(x, states["x"], atol=1e-2)


def test_a_first_version_depends_on_its_name_and_the_seed_alone(tmp_path: Path) -> None:
    entry = "x: f32[few, more] = glorot"
    alone = first(entry, tmp_path).states["x"]
    others = first(f"a: f32[more] = normal(1), {entry}, z: f32[few, more] = glorot", tmp_path).states
    np.testing.assert_array_equal(others["x"], alone)
    assert not np.array_equal(others["z"], alone)
    later = first(f"z: f32[few, more] = glorot\nstate a: f32[more] = normal(1)\nstate {entry}", tmp_path).states
    for name, value in others.items():
        np.testing.assert_array_equal(later[name], value)
    np.testing.assert_array_equal(first(entry, tmp_path, seed="0").states["x"], alone)
    seeded = first(entry, tmp_path, seed="5").states["x"]
    assert not np.isin(seeded, alone).any()
    np.testing.assert_array_equal(first(entry, tmp_path, head="seed 5\n").states["x"], seeded)
    np.testing.assert_array_equal(first(entry, tmp_path, head="seed 9\n", seed="5").states["x"], seeded)


@pytest.mark.parametrize("initializer", ["glorot", "glorot_normal", "he", "he_uniform", "orthogonal", "normal(1)"])
def test_every_drawing_initializer_hears_the_seed(initializer: str, tmp_path: Path) -> None:
    entry = f"x: f32[few, more] = {initializer}"
    zero, again, one = (first(entry, tmp_path, seed=seed).states["x"] for seed in ("0", "0", "1"))
    np.testing.assert_array_equal(zero, again)
    assert not np.isclose(zero, one, atol=1e-6).any()


# -------------------------------------------------------------------------------------------------------------- losses
DIMS = {"rows": 3, "classes": 4, "code": 2}
LABEL = np.array([0, 3, 1], np.int32)
X = "f64[rows, classes]"
FORMULAS: list[tuple[str, str, dict[str, str], Callable[..., Array], list[Array]]] = [
    ("softmax(x, classes)", X, {"x": X}, lambda x: np.exp(reference.log_softmax(x)), [draw(3, 4)]),
    ("softmax(x)", X, {"x": X}, lambda x: np.exp(x) / np.exp(x).sum(), [draw(3, 4)]),
    ("log_softmax(x, rows)", X, {"x": X}, lambda x: reference.log_softmax(x, 0), [draw(3, 4)]),
    ("logsumexp(x, rows, classes)", "f64[]", {"x": X}, lambda x: np.log(np.exp(x).sum()), [draw(3, 4)]),
    ("logsumexp(x, classes)", "f64[rows]", {"x": X}, lambda x: np.log(np.exp(x).sum(1)), [draw(3, 4)]),
    ("var(x, rows)", "f64[classes]", {"x": X}, lambda x: x.var(0), [draw(3, 4)]),
    ("var(x)", "f64[]", {"x": X}, lambda x: x.var(), [draw(3, 4)]),
    ("mse(x, y)", "f64[]", {"x": X, "y": X}, lambda x, y: ((x - y) ** 2).mean(), [draw(3, 4), draw(3, 4, seed=1)]),
    ("squared_error(x, y)", X, {"x": X, "y": X}, lambda x, y: (x - y) ** 2, [draw(3, 4), draw(3, 4, seed=1)]),
    (
        "squared_distance(x, y)",
        "f64[rows, classes]",
        {"x": "f64[rows, code]", "y": "f64[classes, code]"},
        lambda x, y: ((x[:, None] - y) ** 2).sum(-1),
        [draw(3, 2), draw(4, 2)],
    ),
    *(
        (
            f"cross_entropy(x, label, smoothing = {smoothing})",
            "f64[rows]",
            {"x": X, "label": "i32[rows]"},
            partial(reference.cross_entropy, smoothing=smoothing),
            [draw(3, 4), LABEL],
        )
        for smoothing in (0, 0.1, 1)
    ),
    (
        "cross_entropy(x, label)",  # the axis of the classes stands first
        "f64[rows]",
        {"x": "f64[classes, rows]", "label": "i32[rows]"},
        lambda x, label: reference.cross_entropy(x.T, label),
        [draw(4, 3), LABEL],
    ),
    (
        "binary_cross_entropy(x, t)",
        X,
        {"x": X, "t": X},
        reference.binary_cross_entropy,
        [draw(3, 4, scale=4), np.random.default_rng(0).random((3, 4))],
    ),
    (
        "layer_norm(x, scale, shift)",
        X,
        {"x": X, "scale": "f64[classes]", "shift": "f64[classes]"},
        lambda x, scale, shift: reference.standardized(x, (1,), 1e-5) * scale + shift,
        [draw(3, 4), draw(4), draw(4, seed=1)],
    ),
    (
        "layer_norm(x, scale, 0, eps = 0.5)",  # over two axes
        X,
        {"x": X, "scale": X},
        lambda x, scale: reference.standardized(x, (0, 1), 0.5) * scale,
        [draw(3, 4), draw(3, 4, seed=1)],
    ),
    (
        "rms_norm(x, scale)",
        X,
        {"x": X, "scale": "f64[rows]"},
        lambda x, scale: x / np.sqrt((x**2).mean(0) + 1e-6) * scale[:, None],
        [draw(3, 4), draw(3)],
    ),
]


@pytest.mark.parametrize("case", FORMULAS, ids=[f"{f[0]}: {f[1]}" for f in FORMULAS])
def test_formula(case: tuple[str, str, dict[str, str], Callable[..., Array], list[Array]], tmp_path: Path) -> None:
    expression, result, inputs, wanted, arrays = case
    check_formula(Formula(expression, result, DIMS, inputs, tmp_path), wanted, arrays)


EXTREME = np.array([[100, -100, 0, 100], [-100, -100, -100, -100], [1e4, -1e4, 88, -104]])


@pytest.mark.parametrize(("dtype", "arithmetic", "tolerance"), [("f64", "f64", 1e-12), ("f32", "exact", 1e-6)])
def test_losses_at_extreme_logits(dtype: str, arithmetic: Arithmetic, tolerance: float, tmp_path: Path) -> None:
    """No overflow, no NaN, and slopes that still say where to go."""
    x, close = f"{dtype}[rows, classes]", partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    probability = np.exp(reference.log_softmax(EXTREME))
    softmax = Formula("softmax(x, classes)", x, DIMS, {"x": x}, tmp_path)
    close(softmax.value(EXTREME, arithmetic=arithmetic), probability)
    log = Formula("log_softmax(x, classes)", x, DIMS, {"x": x}, tmp_path)
    close(log.value(EXTREME, arithmetic=arithmetic), reference.log_softmax(EXTREME))
    given = {"x": x, "label": "i32[rows]"}
    entropy = Formula("cross_entropy(x, label)", f"{dtype}[rows]", DIMS, given, tmp_path)
    close(entropy.value(EXTREME, LABEL, arithmetic=arithmetic), reference.cross_entropy(EXTREME, LABEL))
    slopes = entropy.gradients(np.ones(3), np.zeros_like(EXTREME), LABEL, arithmetic=arithmetic)["x"]
    close(slopes, 1 / 4 - np.eye(4)[LABEL])
    binary = Formula("binary_cross_entropy(x, t)", x, DIMS, {"x": x, "t": x}, tmp_path)
    for target in (np.zeros((3, 4)), np.ones((3, 4)), np.full((3, 4), 0.25)):
        close(binary.value(EXTREME, target, arithmetic=arithmetic), reference.binary_cross_entropy(EXTREME, target))
        moved = binary.gradients(np.ones((3, 4)), EXTREME, target, arithmetic=arithmetic)["x"]
        wanted = np.where(EXTREME > 0, 1, np.where(EXTREME < 0, 0, 0.5)) - target
        np.testing.assert_allclose(moved, wanted, atol=2e-3)  # x - (x - slope) has the grain of x: 1e4 in f32


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_binary_cross_entropy_keeps_every_digit(dtype: str, tmp_path: Path) -> None:
    """Where the logit is right, too: the loss and its slope are as small as they are, and not 0."""
    number, least = (np.float32, 85) if dtype == "f32" else (np.float64, 690)  # beyond it e^-x is subnormal
    eps = float(np.finfo(number).eps)
    logit = np.linspace(-least, least, 999).astype(number)
    for target in (0, 1, 0.25):
        formula = Formula(
            f"binary_cross_entropy(x, {target})", f"{dtype}[n]", {"n": 999}, {"x": f"{dtype}[n]"}, tmp_path
        )
        x = logit.astype(np.float64)
        wanted = target * np.logaddexp(0, -x) + (1 - target) * np.logaddexp(0, x)
        found = formula.value(logit, arithmetic="exact")
        np.testing.assert_allclose(found, wanted, rtol=8 * eps)
    text = f"system s\ndim n = 999\nparam x: {dtype}[n] = 0\nstate slope: {dtype}[n] = 0\n"
    text += "optimizer keep { p' = g }\nlearn x with keep minimizing { sum(binary_cross_entropy(x, 1)) }\n"
    system = Small(text, tmp_path, arithmetic="exact")
    system.states["x"] = logit
    system.step()
    wanted = -1 / (1 + np.exp(logit.astype(np.float64)))
    np.testing.assert_allclose(system.states["x"], wanted, rtol=8 * eps)


@pytest.mark.peers
def test_losses_are_those_of_pytorch(tmp_path: Path) -> None:
    import torch
    import torch.nn.functional as F  # noqa: N812

    x, y, label = torch.tensor(draw(3, 4)), torch.tensor(draw(3, 4, seed=1)), torch.tensor(LABEL).long()
    target, scale, shift = torch.sigmoid(y), torch.tensor(draw(4)), torch.tensor(draw(4, seed=1))
    with_label, vector = {"x": X, "label": "i32[rows]"}, "f64[classes]"
    cases: list[tuple[str, str, dict[str, str], torch.Tensor]] = [
        ("cross_entropy(x, label)", "f64[rows]", with_label, F.cross_entropy(x, label, reduction="none")),
        (
            "cross_entropy(x, label, 0.2)",
            "f64[rows]",
            with_label,
            F.cross_entropy(x, label, reduction="none", label_smoothing=0.2),
        ),
        (
            "binary_cross_entropy(x, target)",
            X,
            {"x": X, "target": X},
            F.binary_cross_entropy_with_logits(x, target, reduction="none"),
        ),
        ("mse(x, y)", "f64[]", {"x": X, "y": X}, F.mse_loss(x, y)),
        ("log_softmax(x, classes)", X, {"x": X}, F.log_softmax(x, 1)),
        (
            "layer_norm(x, scale, shift)",
            X,
            {"x": X, "scale": vector, "shift": vector},
            F.layer_norm(x, (4,), scale, shift),
        ),
        ("rms_norm(x, scale)", X, {"x": X, "scale": vector}, F.rms_norm(x, (4,), scale, 1e-6)),
        ("var(x, rows)", vector, {"x": X}, x.var(0, correction=0)),
    ]
    arrays = {"x": x, "y": y, "label": label.int(), "target": target, "scale": scale, "shift": shift}
    for expression, result, inputs, wanted in cases:
        found = Formula(expression, result, DIMS, inputs, tmp_path).value(*(arrays[n].numpy() for n in inputs))
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12, err_msg=expression)
