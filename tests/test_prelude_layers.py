"""The prelude's layers, and what else moves along axes, against NumPy in float64 and PyTorch."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import prelude_references as reference
import pytest
from gradcheck import differences
from prelude_references import Array, Formula, Small, check_formula, frame


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


# -------------------------------------------------------------------------------------------------------------- dense
@pytest.mark.parametrize("to", ["made", "inside"])
def test_dense(to: str, tmp_path: Path) -> None:
    dims = {"rows": 4, "inside": 3, "made": 2}
    text = frame({**dims, "batch": 4}) + 'data d from "d.npz" {\n x: f64[inside] = x\n}\n'
    text += f"region f(x: f32[batch, inside]) -> f32[batch, {to}] {{ dense(x, {to}) }}\n"
    text += "learn f.* with sgd(1) minimizing { sum(f(f32(x)), batch, " + to + ") }\n"
    x = draw(4, 3).astype(np.float32)
    system = Small(text, tmp_path, {"x": x.astype(np.float64)})
    w, b = system.states["f.dense.w"], system.states["f.dense.b"]
    assert w.shape == (3, dims[to]) and not b.any()
    system.states["f.dense.b"] = b = draw(dims[to])
    np.testing.assert_allclose(system.region("f", x=x), x @ w + b, rtol=1e-6)
    system.step()
    np.testing.assert_allclose(w - system.states["f.dense.w"], np.outer(x.sum(0), np.ones(dims[to])), rtol=1e-6)
    np.testing.assert_allclose(b - system.states["f.dense.b"], np.full(dims[to], 4), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_layers_are_of_their_inputs_element_type(dtype: str, tmp_path: Path) -> None:
    """All they hold is, but for running statistics of bf16, which 8 bits would not let move."""
    text = frame({"inside": 3, "made": 2, "batch": 4}) + f"let real = {dtype}\n"
    text += 'data d from "d.npz" {\n x: f32[inside] = x\n y: i32[] = y\n}\n'
    text += "region f(x: real[batch, inside]) -> real[batch, made] { dense(batch_norm(x, inside, 0.5), made) }\n"
    text += "learn f.* with adam(0.1) minimizing { mean(cross_entropy(f(real(x)), y)) }\n"
    x = 10 + draw(4, 3).astype(np.float32)
    system = Small(text, tmp_path, {"x": x, "y": np.array([0, 1, 1, 0], np.int32)}, arithmetic="exact")
    types = {name: info.type.dtype.name for name, info in system.module.states.items()}
    kept = "f32" if dtype == "bf16" else dtype
    assert {types[f"f.dense.{name}"] for name in "wb"} == {types["f.batch_norm.scale"], dtype}
    assert {types["f.batch_norm.average"], types["f.batch_norm.variance"]} == {kept}
    losses = [system.step()["loss"] for _ in range(20)]
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(system.states["f.batch_norm.average"], x.mean(0), rtol=1e-2)


# --------------------------------------------------------------------------------------------------------- batch norm
NORMALIZED = """
data d from "d.npz" {
    x: f32[rows, channels]      = x
    target: f32[rows, channels] = target
}
param a: f32[channels] = 1
region f(x: f32[batch, rows, channels]) -> f32[batch, rows, channels] {
    batch_norm(tanh(x * a), channels, momentum = 0.25, eps = 1e-3)
}
learn a, f.* with sgd(0.5) minimizing { mean(f(x) * target) }
"""


def normalized_loss(a: Array, scale: Array, shift: Array, x: Array, target: Array) -> float:
    normal = reference.standardized(np.tanh(x * a), (0, 1), 1e-3)
    return float(((normal * scale + shift) * target).mean())


def test_batch_norm(tmp_path: Path) -> None:
    """Statistics, and slopes through them, are the whole batch's, though it is in two shards; then the running ones."""
    x, target = (draw(6, 2, 3, seed=seed).astype(np.float32) for seed in (0, 1))
    x[3:] += 2  # the second shard is unlike the first
    system = Small(frame({"rows": 2, "channels": 3, "batch": 6}) + NORMALIZED, tmp_path, {"x": x, "target": target})
    paths = ["a", "f.batch_norm.scale", "f.batch_norm.shift"]
    system.states |= {"a": draw(3), "f.batch_norm.scale": draw(3, seed=1), "f.batch_norm.shift": draw(3, seed=2)}
    average, variance = np.zeros(3), np.ones(3)
    given = [x.astype(np.float64), target.astype(np.float64)]
    for _ in range(3):
        before = [system.states[path] for path in paths]
        loss = system.step()["loss"]
        assert loss == pytest.approx(normalized_loss(*before, *given), rel=1e-9)
        for place, path in enumerate(paths):
            slopes = differences(lambda values: normalized_loss(*values), [*before, *given], place)
            np.testing.assert_allclose(2 * (before[place] - system.states[path]), slopes, rtol=1e-5, atol=1e-8)
        hidden = np.tanh(given[0] * before[0])
        average = 0.75 * average + 0.25 * hidden.mean((0, 1))
        variance = 0.75 * variance + 0.25 * hidden.var((0, 1))
        np.testing.assert_allclose(system.states["f.batch_norm.average"], average, rtol=1e-12)
        np.testing.assert_allclose(system.states["f.batch_norm.variance"], variance, rtol=1e-12)
    a, scale, shift = (system.states[path] for path in paths)
    wanted = (np.tanh(x * a) - average) / np.sqrt(variance + 1e-3) * scale + shift
    np.testing.assert_allclose(system.region("f", x=x), wanted, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- dropout
DROPPED = """
param a: f64[rows, columns] = 1
learn a with sgd(1) minimizing { sum(dropout(a, 0.3)) }
"""


def kept(system: Small) -> Array:
    """What a training step multiplies each element with: the slope of the sum."""
    system.states["a"] = np.ones((60, 50))
    loss = system.step()["loss"]
    factor = 1 - system.states["a"]
    assert loss == pytest.approx(factor.sum(), rel=1e-12)
    return factor


def test_dropout(tmp_path: Path) -> None:
    head = frame({"rows": 60, "columns": 50})
    system = Small(head + DROPPED, tmp_path)
    first, second = kept(system), kept(system)
    for factor in (first, second):
        zero = np.isclose(factor, 0, atol=1e-12)
        assert np.allclose(factor[~zero], 1 / 0.7, rtol=1e-12) and zero.mean() == pytest.approx(0.3, abs=0.03)
    assert (np.isclose(first, 0) == np.isclose(second, 0)).mean() == pytest.approx(0.58, abs=0.05)  # independent
    system.steps = 0
    np.testing.assert_array_equal(kept(system), first)
    assert not np.array_equal(kept(Small(head + DROPPED, tmp_path, overrides={"seed": "1"})), first)
    twice = kept(Small(head + DROPPED.replace("dropout(a, 0.3)", "dropout(a, 0.3) + dropout(a, 0.3)"), tmp_path))
    assert (np.isclose(twice, 1 / 0.7)).mean() == pytest.approx(0.42, abs=0.05)  # every place draws of its own
    assert (kept(Small(head + DROPPED.replace("0.3", "0"), tmp_path)) == 1).all()


def test_dropout_of_everything(tmp_path: Path) -> None:
    """At a rate of 1 nothing is left, and nothing divided by 0; at a rate that is computed, too."""
    for rate in ("1", "minimum(1, step + 1)"):
        assert (kept(Small(frame({"rows": 60, "columns": 50}) + DROPPED.replace("0.3", rate), tmp_path)) == 0).all()


def test_dropout_and_bernoulli_out_of_training(tmp_path: Path) -> None:
    dims, x = {"rows": 60, "columns": 50}, draw(60, 50)
    formula = Formula("dropout(x, 0.3)", "f64[rows, columns]", dims, {"x": "f64[rows, columns]"}, tmp_path)
    np.testing.assert_array_equal(formula.value(x), x)
    drawn = Formula("bernoulli(0.2, rows, columns)", "bool[rows, columns]", dims, {}, tmp_path).value()
    assert drawn.mean() == pytest.approx(0.2, abs=0.03)


# ----------------------------------------------------------------------------------------------------------- attention
SEQUENCES = {"heads": 2, "time": 4, "key": 3, "head": 3}
QKV = dict.fromkeys("qkv", "f64[heads, time, head]")
MASKS = {
    "attention(q, k, v)": np.ones((4, 4), np.bool_),
    "attention(q, k, v, everything)": np.ones((4, 4), np.bool_),
    "attention(q, k, v, causal)": np.tri(4) > 0,
    "attention(q, k, v, mask = near)": np.abs(np.subtract.outer(np.arange(4), np.arange(4))) <= 1,
}
NEAR = "fn near(query, key) = abs(iota(query) - iota(key)) <= 1\n"


@pytest.mark.parametrize("expression", MASKS)
def test_attention(expression: str, tmp_path: Path) -> None:
    formula = Formula(expression, QKV["q"], SEQUENCES, QKV, tmp_path, NEAR)
    qkv = [draw(2, 4, 3, seed=seed) for seed in range(3)]
    check_formula(formula, partial(reference.attention, allowed=MASKS[expression]), qkv)


@pytest.mark.parametrize("allowed", ["bool[time, key]", "bool[heads, time, key]"])
def test_masked_attention_from_one_sequence_to_another(allowed: str, tmp_path: Path) -> None:
    inputs = {"q": QKV["q"], "k": "f64[heads, key, head]", "v": "f64[heads, key, head]", "allowed": allowed}
    formula = Formula("masked_attention(q, k, v, allowed)", QKV["q"], SEQUENCES, inputs, tmp_path)
    mask = np.random.default_rng(0).random((2, 4, 3) if "heads" in allowed else (4, 3)) < 0.5
    mask[..., 0] = True
    check_formula(formula, reference.attention, [draw(2, 4, 3), draw(2, 3, 3), draw(2, 3, 3, seed=1), mask])


@pytest.mark.parametrize("late", [1, 2, 3])
def test_causal_attention_does_not_see_the_future(late: int, tmp_path: Path) -> None:
    """Not a bit of an earlier output is of a later token, nor a slope."""
    single = dict.fromkeys("qkv", "f32[heads, time, head]")
    formula = Formula("attention(q, k, v, causal)", single["q"], SEQUENCES, single, tmp_path)
    qkv = [draw(2, 4, 3, seed=seed).astype(np.float32) for seed in range(3)]
    changed = [x.copy() for x in qkv]
    for x in changed:
        x[:, late:] = 1e3 * draw(2, 4 - late, 3, seed=9)
    before, after = (formula.value(*given, arithmetic="exact") for given in (qkv, changed))
    assert np.array_equal(before[:, :late], after[:, :late]) and not np.array_equal(before[:, late:], after[:, late:])
    weight = np.zeros((2, 4, 3), np.float32)
    weight[:, :late] = draw(2, late, 3)
    for name, slope in formula.gradients(weight, *qkv, arithmetic="exact").items():
        assert not slope[:, late:].any()
        assert slope[:, :late].any() == (name == "v" or late > 1)  # the first token has no choice where to look


@pytest.mark.peers
def test_attention_is_that_of_pytorch(tmp_path: Path) -> None:
    import torch

    qkv = [draw(2, 4, 3, seed=seed) for seed in range(3)]
    for expression, mask in MASKS.items():
        theirs = [torch.tensor(x, requires_grad=True) for x in qkv]
        allowed = torch.tensor(mask)
        wanted = torch.nn.functional.scaled_dot_product_attention(*theirs, attn_mask=allowed)
        weight = draw(2, 4, 3, seed=5)
        (wanted * torch.tensor(weight)).sum().backward()
        formula = Formula(expression, QKV["q"], SEQUENCES, QKV, tmp_path, NEAR)
        np.testing.assert_allclose(formula.value(*qkv), wanted.detach().numpy(), rtol=1e-12, atol=1e-12)
        for found, tensor in zip(formula.gradients(weight, *qkv).values(), theirs, strict=True):
            assert tensor.grad is not None
            np.testing.assert_allclose(found, tensor.grad.numpy(), rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------- pooling and one-hot
WINDOWS = [(2, 2, 0), (3, 3, 0), (3, 1, 0), (2, 3, 0), (3, 2, 1), (4, 2, 2), (9, 9, 0), (1, 1, 0)]


@pytest.mark.parametrize(("size", "stride", "padding"), WINDOWS)
def test_pooling(size: int, stride: int, padding: int, tmp_path: Path) -> None:
    made = (9 + 2 * padding - size) // stride + 1
    dims, inputs = {"rows": 2, "columns": 9, "made": made}, {"x": "f64[rows, columns]"}
    for name, how, fill in (("max_pool", np.max, -np.inf), ("avg_pool", np.mean, 0)):
        expression = f"{name}(x, columns, made, size = {size}, stride = {stride}, padding = {padding})"
        formula = Formula(expression, "f64[rows, made]", dims, inputs, tmp_path)
        wanted = partial(reference.pooled, size=size, stride=stride, padding=padding, how=how, fill=fill)
        check_formula(formula, wanted, [draw(2, 9)])


def test_one_hot(tmp_path: Path) -> None:
    dims, label = {"rows": 4, "classes": 3}, np.array([2, 0, 1, 2], np.int32)
    for expression in ("one_hot(i, classes)", "f32(iota(classes) == i)"):
        formula = Formula(expression, "f32[rows, classes]", dims, {"i": "i32[rows]"}, tmp_path)
        np.testing.assert_array_equal(formula.value(label), np.eye(3)[label])


# --------------------------------------------------------------------------------------------------------- convolution
def made(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


SLIDES = [(1, 0, 1), (1, 1, 1), (2, 0, 1), (2, 1, 1), (3, 2, 1), (1, 2, 2), (2, 2, 2)]


@pytest.mark.parametrize(("stride", "padding", "dilation"), SLIDES)
@pytest.mark.parametrize(("groups", "inside"), [(1, 3), (2, 2), (4, 1)])
def test_convolution(stride: int, padding: int, dilation: int, groups: int, inside: int, tmp_path: Path) -> None:
    """Whole, in groups, and channel by channel."""
    tall, wide = made(6, 3, stride, padding, dilation), made(5, 2, stride, padding, dilation)
    dims = {"rows": 6, "columns": 5, "down": 3, "across": 2, "inside": inside, "out": 2, "tall": tall, "wide": wide}
    options = f"to = (tall, wide), stride = {stride}, padding = {padding}, dilation = {dilation}"
    group = ", group" if groups > 1 else ""
    inputs = {"x": f"f64[rows, columns{group}, inside]", "w": f"f64[down, across{group}, inside, out]"}
    if groups > 1:
        dims["group"] = groups
        options += ", groups = group"
    formula = Formula(f"conv2d(x, w, rows, columns, {options})", f"f64[tall, wide{group}, out]", dims, inputs, tmp_path)
    shape = (groups,) if groups > 1 else ()

    def wanted(x: Array, w: Array) -> Array:
        x, w = x.reshape(6, 5, groups, inside), w.reshape(3, 2, groups, inside, 2)
        return reference.conv2d(x, w, stride, padding, dilation).reshape(tall, wide, *shape, 2)

    check_formula(formula, wanted, [draw(6, 5, *shape, inside), draw(3, 2, *shape, inside, 2, seed=1)])


@pytest.mark.peers
def test_planes_are_those_of_pytorch(tmp_path: Path) -> None:
    """Convolution in groups and pooling of planes, forward and back; PyTorch's axes are channels, rows, columns."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    dims = {"rows": 6, "columns": 6, "group": 2, "inside": 2, "down": 3, "across": 3, "out": 2, "half": 3, "third": 3}
    x, w = draw(6, 6, 2, 2), draw(3, 3, 2, 2, 2, seed=1)
    image = torch.tensor(x.reshape(6, 6, 4).transpose(2, 0, 1), requires_grad=True)
    kernel = torch.tensor(w.transpose(2, 4, 3, 0, 1).reshape(4, 2, 3, 3), requires_grad=True)
    inputs = {"x": "f64[rows, columns, group, inside]", "w": "f64[down, across, group, inside, out]"}
    convolved = "conv2d(x, w, rows, columns, padding = 1, groups = group)"
    pooled = "{0}(y, rows, half, size = 3, stride = 2, padding = 1)"
    pooled = "{0}(" + pooled + ", columns, third, size = 3, stride = 2, padding = 1)"
    for pool, theirs in (("max_pool", F.max_pool2d), ("avg_pool", F.avg_pool2d)):
        extra = f"fn pooled(y) = {pooled.format(pool)}\n"
        formula = Formula(f"pooled({convolved})", "f64[half, third, group, out]", dims, inputs, tmp_path, extra)
        wanted = theirs(F.conv2d(image, kernel, padding=1, groups=2), 3, 2, 1)
        found = formula.value(x, w).reshape(3, 3, 4).transpose(2, 0, 1)
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-12, atol=1e-12)
        weight = draw(3, 3, 2, 2, seed=3)
        number = (wanted.permute(1, 2, 0).flatten() * torch.tensor(weight.reshape(-1))).sum()
        back = torch.autograd.grad(number, [image, kernel])
        slopes = formula.gradients(weight, x, w)
        np.testing.assert_allclose(slopes["x"].reshape(6, 6, 4).transpose(2, 0, 1), back[0].numpy(), atol=1e-12)
        turned = slopes["w"].transpose(2, 4, 3, 0, 1).reshape(4, 2, 3, 3)
        np.testing.assert_allclose(turned, back[1].numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.peers
def test_batch_norm_is_that_of_pytorch(tmp_path: Path) -> None:
    """But for the running variance, which PyTorch corrects by n / (n - 1)."""
    import torch

    x = draw(6, 2, 3).astype(np.float32)
    head = frame({"rows": 2, "channels": 3, "batch": 6})
    system = Small(head + NORMALIZED, tmp_path, {"x": x, "target": x})
    loss = system.step()["loss"]
    layer = torch.nn.BatchNorm1d(3, eps=1e-3, momentum=0.25, dtype=torch.float64)
    out = layer(torch.tanh(torch.tensor(x, dtype=torch.float64)).permute(0, 2, 1)).permute(0, 2, 1)
    assert loss == pytest.approx((out * torch.tensor(x)).mean().item(), rel=1e-12)
    assert layer.running_mean is not None and layer.running_var is not None
    np.testing.assert_allclose(system.states["f.batch_norm.average"], layer.running_mean.numpy(), rtol=1e-12)
    corrected = (layer.running_var.numpy() - 0.75) * 11 / 12 + 0.75
    np.testing.assert_allclose(system.states["f.batch_norm.variance"], corrected, rtol=1e-12)
    assert math.isfinite(loss)
