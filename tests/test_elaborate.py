"""What programs mean: small systems against NumPy, examples against the verifier."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from elaborating import DATA, HEAD, System, module_of, write_data

from alphac.diagnostics import Diagnostics
from alphac.frontend.elaborate import elaborate
from alphac.frontend.parse import parse, read_source
from alphac.ir.core import Op, RegionContract, walk
from alphac.ir.text import print_module
from alphac.ir.text_parse import parse_module
from alphac.ir.verify import verify

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(ROOT.glob("examples/*/*.alpha"))
PARAMS = "param w: f32[pixels, classes] = glorot\nparam b: f32[classes] = 0\n"
LOGITS = "region logits(image: f32[batch, pixels]) -> f32[batch, classes] { image @ w + b }\n"
LOSS = "{ mean(cross_entropy(logits(image), label)) }\n"


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# ------------------------------------------------------------------------------------------------------------- examples
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path: Path) -> None:
    module = elaborate(parse(read_source(path), str(path)), overrides={}, directory=path.parent)
    verify(module)
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert print_module(again) == text
    assert module.system == path.stem and module.training is not None and module.evaluations
    assert [p.name for p in module.functions["initialize"].results] == list(module.states)


# ------------------------------------------------------------------------------------------------------------- learning
def expected_gradients(system: System) -> tuple[float, np.ndarray, np.ndarray]:
    x, y = system.data["images"][:8].astype(np.float64), system.data["labels"][:8]
    p = softmax(x @ system.states["w"].astype(np.float64) + system.states["b"])
    d = (p - np.eye(3)[y]) / 8
    return float(-np.log(p[np.arange(8), y]).mean()), x.T @ d, d.sum(0)


def test_sgd(tmp_path: Path) -> None:
    system = System(HEAD + DATA + PARAMS + LOGITS + "learn logits.* with sgd(0.5) minimizing" + LOSS, tmp_path)
    assert list(system.states) == ["w", "b"]
    before = dict(system.states)
    loss, dw, db = expected_gradients(system)
    assert system.step() == {"loss": pytest.approx(loss, rel=1e-6)}
    np.testing.assert_allclose(system.states["w"], before["w"] - 0.5 * dw, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(system.states["b"], before["b"] - 0.5 * db, rtol=1e-5, atol=1e-7)


def rule(name: str, p: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int) -> np.ndarray:
    """One step of each optimizer of the prelude, in float64, as its paper or PyTorch defines it."""
    zero = np.zeros_like(p)
    if name == "momentum":
        s["v"] = 0.9 * s.get("v", zero) + g
        return p - 0.1 * s["v"]
    if name == "nesterov":
        s["v"] = 0.9 * s.get("v", zero) + g
        return p - 0.1 * (g + 0.9 * s["v"])
    if name in ("adam", "adamw"):
        s["m"], s["v"] = 0.9 * s.get("m", zero) + 0.1 * g, 0.999 * s.get("v", zero) + 0.001 * g * g
        move = s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)
        return p - 0.1 * (move + (0.01 * p if name == "adamw" else 0))
    if name == "adagrad":
        s["s"] = s.get("s", zero) + g * g
        return p - 0.1 * g / (np.sqrt(s["s"]) + 1e-10)
    if name == "rmsprop":
        s["s"] = 0.99 * s.get("s", zero) + 0.01 * g * g
        return p - 0.1 * g / (np.sqrt(s["s"]) + 1e-8)
    assert name == "lion"
    m = s.get("m", zero)
    s["m"] = 0.99 * m + 0.01 * g
    return p - 0.1 * np.sign(0.9 * m + 0.1 * g)


@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop", "lion"])
def test_optimizer(name: str, tmp_path: Path) -> None:
    text = HEAD + DATA + PARAMS + LOGITS + f"learn logits.* with {name}(0.1) minimizing" + LOSS
    system = System(text, tmp_path)
    memory: dict[str, np.ndarray] = {}
    for t in range(1, 4):
        _, dw, _ = expected_gradients(system)
        wanted = rule(name, system.states["w"].astype(np.float64), dw, memory, t)
        system.step()
        np.testing.assert_allclose(system.states["w"], wanted, rtol=2e-4, atol=2e-6)
    assert {n for n in system.states if n.startswith(f"{name}.w.")} >= {f"{name}.w.{n}" for n in memory}


def test_clipped_and_decayed_compose(tmp_path: Path) -> None:
    text = HEAD + DATA + PARAMS + LOGITS
    system = System(text + "learn logits.* with clipped(0.1, decayed(0.5, sgd(1))) minimizing" + LOSS, tmp_path)
    before = dict(system.states)
    _, dw, db = expected_gradients(system)
    scale = min(1, 0.1 / (np.sqrt((dw**2).sum() + (db**2).sum()) + 1e-6))
    system.step()
    np.testing.assert_allclose(system.states["w"], before["w"] * 0.5 - scale * dw, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(system.states["b"], before["b"] * 0.5 - scale * db, rtol=1e-4, atol=1e-6)


def test_total_sees_what_outer_rules_made_of_every_gradient(tmp_path: Path) -> None:
    text = HEAD + DATA + PARAMS + LOGITS
    text += "optimizer half(rule) {\n g = g / 2\n p' = rule(p, g)\n}\n"
    system = System(text + "learn logits.* with half(clipped(0.01, sgd(1))) minimizing" + LOSS, tmp_path)
    before = dict(system.states)
    _, dw, db = expected_gradients(system)
    dw, db = dw / 2, db / 2
    scale = min(1, 0.01 / (np.sqrt((dw**2).sum() + (db**2).sum()) + 1e-6))
    system.step()
    np.testing.assert_allclose(system.states["w"], before["w"] - scale * dw, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant(0.5)", lambda t: 0.5),
        ("step_decay(0.5, 2)", lambda t: 0.5 * 0.1 ** (t // 2)),
        ("warm_up(0.5, 3)", lambda t: 0.5 * min(1, (t + 1) / 3)),
        ("cosine(0.5, 4)", lambda t: 0.25 * (1 + np.cos(np.pi * min(1, t / 4)))),
        ("cosine(0.5, 6, warmup = 2)", lambda t: min(1, (t + 1) / 2) * 0.25 * (1 + np.cos(np.pi * max(0, t - 2) / 4))),
        ("linear(0.5, 4, low = 0.1)", lambda t: 0.5 - 0.4 * t / 4),
    ],
)
def test_schedule(schedule: str, wanted: object, tmp_path: Path) -> None:
    text = HEAD + DATA + "param b: f32[] = 0\nlearn b with sgd(" + schedule + ") minimizing { b + 0 * mean(image) }\n"
    system = System(text, tmp_path)
    for t in range(5):
        before = system.states["b"]
        system.step()
        assert before - system.states["b"] == pytest.approx(wanted(t), rel=1e-5, abs=1e-7)  # type: ignore[operator]


def test_later_statements_read_versions_written_above(tmp_path: Path) -> None:
    text = HEAD + DATA + "state a: f32[] = 1, c: f32[] = 0\n"
    system = System(text + "transition { a' = a + 1 }\ntransition { c' = a }\n", tmp_path)
    system.step()
    assert (system.states["a"], system.states["c"]) == (2, 2)


def test_together_reads_versions_on_entry(tmp_path: Path) -> None:
    text = HEAD + DATA + "state a: f32[] = 1, c: f32[] = 0\n"
    system = System(text + "together {\n transition { a' = a + 1 }\n transition { c' = a }\n}\n", tmp_path)
    system.step()
    assert (system.states["a"], system.states["c"]) == (2, 1)


def test_transition_reads_its_own_next_version(tmp_path: Path) -> None:
    text = HEAD + "state a: f32[] = 1, c: f32[] = 0\ntransition {\n a' = a + 1\n c' = a' * 10 + a\n}\n"
    system = System(text, tmp_path)
    system.step()
    assert system.states["c"] == 21


def test_two_learners_have_states_and_streams_of_their_own(tmp_path: Path) -> None:
    text = HEAD + DATA + "param a, c: f32[pixels] = 0\n"
    learn = "learn {0} with adam(0.1) minimizing {{ mean({0} * normal(batch, pixels) * image) }}\n"
    system = System(text + learn.format("a") + learn.format("c"), tmp_path)
    assert [n for n in system.states if n.endswith(".m")] == ["adam.a.m", "adam_2.c.m"]
    assert set(system.step()) == {"loss", "loss_2"}
    assert not np.array_equal(system.states["adam.a.m"], system.states["adam_2.c.m"])


# ----------------------------------------------------------------------------------------------------------- evaluating
@pytest.mark.parametrize(
    ("metric", "wanted"),
    [
        ("mean(image)", lambda x, y: x.mean()),
        ("sum(image, batch, pixels)", lambda x, y: x.sum()),
        ("max(image)", lambda x, y: x.max()),
        ("min(image * image)", lambda x, y: (x * x).min()),
        ("mean(label == 1)", lambda x, y: (y == 1).mean()),
        ("sum(mean(image, batch) ** 2)", lambda x, y: (x.mean(0) ** 2).sum()),
        ("sqrt(mean(image ** 2) - mean(image) ** 2)", lambda x, y: x.std()),
        ('max(einsum("bp, bp -> p", image, image))', lambda x, y: (x * x).sum(0).max()),
        ("sum(f32(label)) / (1 + mean(f32(label)))", lambda x, y: y.sum() / (1 + y.mean())),
    ],
)
def test_evaluate_takes_the_whole_split(metric: str, wanted: object, tmp_path: Path) -> None:
    text = HEAD + DATA + "state a: f32[] = 0\ntransition { a' = mean(image) }\nevaluate it on train = " + metric + "\n"
    system = System(text, tmp_path)
    x, y = system.data["images"].astype(np.float64), system.data["labels"].astype(np.float64)
    assert system.evaluate("it") == pytest.approx(wanted(x, y), rel=1e-5)  # type: ignore[operator]


def test_ragged_training_divides_by_real_examples(tmp_path: Path) -> None:
    text = HEAD + DATA + "state a: f32[] = 0, m: f32[pixels] = 0\n"
    text += "transition {\n a' = mean(image)\n m' = max(image, batch)\n}\ntrain on d for 1 epoch, keep ragged batch\n"
    system = System(text, tmp_path)
    system.step(rows=slice(16, 20), valid=4)
    assert system.states["a"] == pytest.approx(system.data["images"][16:20].mean(), rel=1e-5)
    np.testing.assert_array_equal(system.states["m"], system.data["images"][16:20].max(0))


# ------------------------------------------------------------------------------------------------------------- language
def run(expression: str, tmp_path: Path, prelude: str = "", steps: int = 1) -> np.ndarray:
    """The value that `expression` gives the state `out`, whose type is found by trying."""
    kind, _, body = expression.partition(" <- ")
    text = HEAD + DATA + prelude + f"state out: {kind} = 0\ntransition {{ out' = {body} }}\n"
    system = System(text, tmp_path)
    for _ in range(steps):
        system.step()
    return system.states["out"]


def test_literals_adapt_and_round_late(tmp_path: Path) -> None:
    assert run("f32[] <- 1 / 3 * mean(image) * 0 + 1 / 3", tmp_path) == np.float32(1 / 3)
    assert run("f64[] <- 1 / 3", tmp_path) == 1 / 3
    assert run("i32[] <- 7 // 2 + 7 % 2 + 2 ** 3", tmp_path) == 12
    assert run("f32[] <- sqrt(hidden)", tmp_path) == 2
    assert run("f64[] <- cos(pi)", tmp_path) == -1


def test_counters_compute_in_64_bits(tmp_path: Path) -> None:
    assert run("f32[] <- step / 4", tmp_path, steps=2) == 0.25
    assert run("i64[] <- step // 2", tmp_path, steps=4) == 1
    assert run("f64[] <- 0.5 ** step", tmp_path, steps=4) == 0.125
    assert run("f32[] <- where(step > 1, 1, 0)", tmp_path, steps=3) == 1


def test_axes_align_by_name(tmp_path: Path) -> None:
    outer = "f32[hidden, classes] <- f32(iota(hidden)) + 10 * f32(iota(classes))"
    np.testing.assert_array_equal(run(outer, tmp_path), np.arange(4)[:, None] + 10 * np.arange(3)[None])
    turned = "f32[classes, hidden] <- f32(iota(hidden)) + 10 * f32(iota(classes))"
    np.testing.assert_array_equal(run(turned, tmp_path), (np.arange(4)[:, None] + 10 * np.arange(3)[None]).T)


MOVES = [
    ("f32[pixels] <- h[1] + 0 * mean(image, batch)", lambda h: h[1]),
    ("f32[hidden] <- take(h, -1, pixels)", lambda h: h[:, -1]),
    ("f32[hidden, 3] <- slice(h, pixels, 3, start = 1, step = 2)", lambda h: h[:, 1::2]),
    (
        "f32[hidden, 9] <- pad(h, pixels, 9, low = 2, value = 7)",
        lambda h: np.pad(h, ((0, 0), (2, 1)), constant_values=7),
    ),
    ("f32[24] <- reshape(h, 24)", lambda h: h.reshape(24)),
    ("f32[2, hidden, pixels] <- stack((h, -h), 2)", lambda h: np.stack([h, -h])),
    ("f32[12, hidden] <- concat((h, rename(h, pixels, more)), 12)", lambda h: np.concatenate([h, h], 1).T),
    ("f32[hidden, pixels] <- cumsum(h, pixels)", lambda h: h.cumsum(1)),
    ("f32[hidden, pixels] <- cumsum(h, pixels, reverse = true)", lambda h: h[:, ::-1].cumsum(1)[:, ::-1]),
    ("f32[5, hidden] <- max_pool(h, pixels, 5, size = 2, stride = 1)", lambda h: np.maximum(h[:, :-1], h[:, 1:]).T),
    ("f32[hidden, 3] <- avg_pool(h, pixels, 3)", lambda h: (h[:, ::2] + h[:, 1::2]) / 2),
    ("f32[hidden] <- var(h, pixels)", lambda h: h.var(1)),
    ("f32[] <- var(h)", lambda h: h.var()),
    ("f32[hidden, pixels] <- var(h, axes(h) - axes(h)) + sum(h, axes(h) - axes(h))", lambda h: h),
    ("f32[hidden] <- sum(h, axes(h) & pixels) + mean(h, axes(h) - hidden)", lambda h: h.sum(1) + h.mean(1)),
    ("f32[hidden, pixels] <- softmax(h, pixels)", softmax),
    ("f32[hidden, pixels] <- log_softmax(h, pixels)", lambda h: np.log(softmax(h))),
    ("f32[hidden, pixels] <- rms_norm(h, ones_)", lambda h: h / np.sqrt((h**2).mean(1, keepdims=True) + 1e-6)),
]


@pytest.mark.parametrize(("expression", "wanted"), MOVES, ids=[m[0] for m in MOVES])
def test_moves(expression: str, wanted: object, tmp_path: Path) -> None:
    prelude = "dim more = pixels\nstate h: f32[hidden, pixels] = normal(1)\nstate ones_: f32[pixels] = 1\n"
    text = HEAD + DATA + prelude
    kind, _, body = expression.partition(" <- ")
    text += f"state out: {kind} = 0\ntransition {{ out' = {body} }}\n"
    system = System(text, tmp_path)
    system.step()
    h = system.states["h"].astype(np.float64)
    np.testing.assert_allclose(system.states["out"], wanted(h), rtol=1e-5, atol=1e-6)  # type: ignore[operator]


def test_scatter_add_over_the_batch(tmp_path: Path) -> None:
    found = run("f32[classes, pixels] <- scatter_add(label, image, classes)", tmp_path)
    data = write_data(tmp_path)
    wanted = np.zeros((3, 6))
    np.add.at(wanted, data["labels"][:8], data["images"][:8])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_repeat_carries_and_collects(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
state h: f32[hidden, pixels] = normal(1)
state last: f32[pixels] = 0, sums: f32[hidden, pixels] = 0
transition {
    s: f32[pixels] = 0
    all = repeat hidden as i {
        s = s + h * (i + 1)
        s
    }
    last' = s
    sums' = all
}
"""
    )
    system = System(text, tmp_path)
    system.step()
    wanted = (system.states["h"] * np.arange(1, 5)[:, None]).cumsum(0)
    np.testing.assert_allclose(system.states["sums"], wanted, rtol=1e-5)
    np.testing.assert_allclose(system.states["last"], wanted[-1], rtol=1e-5)


def test_nested_loops_slice_both_axes(tmp_path: Path) -> None:
    text = HEAD + "state h: f32[hidden, pixels] = normal(1)\nstate out: f32[] = 0\n"
    text += "transition {\n s: f32[] = 0\n repeat hidden {\n scan pixels { s = s * 0.5 + h }\n }\n out' = s\n}\n"
    system = System(text, tmp_path)
    system.step()
    wanted = 0.0
    for value in system.states["h"].reshape(-1):
        wanted = wanted * 0.5 + value
    assert system.states["out"] == pytest.approx(wanted, rel=1e-5)


BLOCKS = """
block twist(x) {
    param m: f32[hidden, axis(x, -1)] = normal(0.5)
    sum(tanh(x * m), hidden)
}
region f(image: f32[batch, pixels]) -> f32[batch, pixels] {
    x = twist(image) + twist(image)
    repeat 3 { x = twist(x) }
    x
}
learn f.* with sgd(0.1) minimizing { mean(f(image) ** 2) }
"""


def test_every_place_of_a_block_has_parameters_of_its_own(tmp_path: Path) -> None:
    system = System(HEAD + DATA + BLOCKS, tmp_path)
    shapes = {name: value.shape for name, value in system.states.items()}
    assert shapes == {"f.twist.m": (4, 6), "f.twist_2.m": (4, 6), "f.twist_3.m": (3, 4, 6)}
    layers = system.states["f.twist_3.m"]
    assert not np.array_equal(layers[0], layers[1])
    x = system.data["images"][:8]

    def twist(x: np.ndarray, m: np.ndarray) -> np.ndarray:
        return np.tanh(x[:, None] * m).sum(1)

    wanted = twist(x, system.states["f.twist.m"]) + twist(x, system.states["f.twist_2.m"])
    for m in layers:
        wanted = twist(wanted, m)
    np.testing.assert_allclose(system.region("f", image=x)[0], wanted, rtol=1e-4, atol=1e-5)
    system.step()
    assert not np.array_equal(system.states["f.twist_3.m"], layers)


NORMALIZED = """
region f(image: f32[batch, pixels]) -> f32[batch, pixels] {
    x = batch_norm(image, pixels)
    repeat 2 { x = batch_norm(x * 2, pixels) }
    x
}
learn f.* with sgd(0.1) minimizing { mean(f(image) * f(image * 3)) }
"""


def test_batch_norm_updates_its_statistics_once_per_step(tmp_path: Path) -> None:
    system = System(HEAD + DATA + NORMALIZED, tmp_path)
    assert system.states["f.batch_norm_2.variance"].shape == (2, 6)
    system.step()
    x = system.data["images"][:8].astype(np.float64)
    np.testing.assert_allclose(system.states["f.batch_norm.average"], 0.1 * x.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(system.states["f.batch_norm.variance"], 0.9 + 0.1 * x.var(0), rtol=1e-4)
    once = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    wanted = 0.9 + 0.1 * (2 * once).var(0)
    np.testing.assert_allclose(system.states["f.batch_norm_2.variance"][0], wanted, rtol=1e-4)


def test_dropout_is_for_training_only(tmp_path: Path) -> None:
    text = HEAD + DATA + "param a: f32[pixels] = 1\n"
    text += "region f(image: f32[batch, pixels]) -> f32[batch, pixels] { dropout(image * 0 + a, 0.5) }\n"
    text += "learn a with sgd(0) minimizing { mean(f(image)) }\n"
    system = System(text, tmp_path)
    assert (system.region("f", image=system.data["images"][:8])[0] == 1).all()
    losses = {system.step()["loss"] for _ in range(4)}
    assert len(losses) > 1 and all(0.2 < x < 1.8 for x in losses)


def test_initializers(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
dim wide = 200, tall = 300
state a: f32[tall, wide] = glorot, c: f32[tall, wide] = he, n: f64[tall, wide] = normal(3), z: f32[wide] = zeros
state q: f32[hidden, pixels] = orthogonal, r: f32[pixels, hidden] = orthogonal(2)
"""
    )
    states = System(text + "transition { z' = z + 1 }\n", tmp_path).states
    bound = np.sqrt(6 / 500)
    assert np.abs(states["a"]).max() <= bound and states["a"].std() == pytest.approx(bound / np.sqrt(3), rel=0.02)
    assert states["c"].std() == pytest.approx(np.sqrt(2 / 300), rel=0.02)
    assert states["n"].std() == pytest.approx(3, rel=0.02) and abs(states["n"].mean()) < 0.1
    np.testing.assert_allclose(states["q"] @ states["q"].T, np.eye(4), atol=1e-5)
    np.testing.assert_allclose(states["r"].T @ states["r"], 4 * np.eye(4), atol=1e-5)


def test_seed_changes_every_draw(tmp_path: Path) -> None:
    text = HEAD + "state n: f32[pixels] = normal(1)\ntransition { n' = n + 1 }\n"
    assert not np.array_equal(System(text, tmp_path).states["n"], System(text, tmp_path, seed="1").states["n"])
    assert np.array_equal(System(text, tmp_path, seed="1").states["n"], System("seed 1\n" + text, tmp_path).states["n"])


def test_region_counts_what_it_is_given(tmp_path: Path) -> None:
    text = HEAD + DATA + PARAMS + LOGITS + "dim centers = 5\n"
    text += "state c: f32[centers, classes] = logits(sample(d.train.image, centers, seed = 3))\n"
    system = System(text + "transition { c' = c + mean(logits(image), batch) }\n", tmp_path)
    np.testing.assert_allclose(system.states["c"], system.data["images"][:5] @ system.states["w"], rtol=1e-4, atol=1e-5)


def test_attention_is_that_of_the_paper(tmp_path: Path) -> None:
    text = HEAD + DATA + "dim time = 5, heads = 2, head = 3\nstate q, k, v: f32[heads, time, head] = normal(1)\n"
    text += "state out: f32[heads, time, head] = 0\ntransition { out' = attention(q, k, v, causal) }\n"
    system = System(text, tmp_path)
    system.step()
    q, k, v = (system.states[n].astype(np.float64) for n in "qkv")
    score = np.where(np.tri(5) > 0, q @ k.transpose(0, 2, 1) / np.sqrt(3), -np.inf)
    np.testing.assert_allclose(system.states["out"], softmax(score) @ v, rtol=1e-4, atol=1e-5)


def test_convolution_with_groups(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
dim rows = 5, columns = 6, group = 2, inside = 2, made = 3, down = 3, across = 3, fewer_rows = 3, fewer_columns = 3
state x: f32[rows, columns, group, inside] = normal(1), w: f32[down, across, group, inside, made] = normal(1)
state out: f32[fewer_rows, fewer_columns, group, made] = 0
transition {
    out' = conv2d(x, w, rows, columns, to = (fewer_rows, fewer_columns), stride = 2, padding = 1, groups = group)
}
"""
    )
    system = System(text, tmp_path)
    system.step()
    x, w = (system.states[n].astype(np.float64) for n in "xw")
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0), (0, 0)))
    wanted = np.zeros((3, 3, 2, 3))
    for i in range(3):
        for j in range(3):
            wanted[i, j] = np.einsum("rcgi,rcgim->gm", padded[2 * i : 2 * i + 3, 2 * j : 2 * j + 3], w)
    np.testing.assert_allclose(system.states["out"], wanted, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ around it
def test_the_document_shows_whole_systems(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "examples/data/digits.npz", tmp_path / "data")
    (tmp_path / "bible.txt").write_text("In the beginning " * 100)
    np.save(tmp_path / "points.npy", np.zeros((50, 2), np.float32))
    text = (ROOT / "docs/language.md").read_text(encoding="utf-8")
    for listing in re.findall(r"^```alpha\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        verify(elaborate(parse(listing, "listing"), overrides={}, directory=tmp_path))


def test_overrides_replace_lets(tmp_path: Path) -> None:
    text = HEAD + DATA + "let rate = 1e-1\nlet twice = 2 * rate\nparam b: f32[] = 0\n"
    text += "learn b with sgd(twice) minimizing { b + 0 * mean(image) }\n"
    system = System(text, tmp_path, rate="0.5")
    system.step()
    assert system.states["b"] == -1


def test_used_files_bring_their_declarations(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "rules.alpha").write_text('use "more.alpha"\nfn double(x) = twice * x\n')
    (tmp_path / "parts" / "more.alpha").write_text("let twice = 2\n")
    text = 'use "parts/rules.alpha"\n' + HEAD + "state a: f32[] = 3\ntransition { a' = double(a) }\n"
    system = System(text, tmp_path)
    system.step()
    assert system.states["a"] == 6


def test_region_contracts_are_kept(tmp_path: Path) -> None:
    text = HEAD + DATA + PARAMS + LOGITS.replace("{", "numeric fast(tolerance = 1e-2) requires matrix(bf16) {")
    module = module_of(text + "learn logits.* with sgd(1) minimizing" + LOSS, tmp_path)
    assert module.regions == {"logits": RegionContract("fast", 1e-2, ("matrix(bf16)",))}


def test_labels_are_bounded(tmp_path: Path) -> None:
    module = module_of(HEAD + DATA + PARAMS + LOGITS + "learn logits.* with sgd(1) minimizing" + LOSS, tmp_path)
    assert {c.name: c.below for c in module.data["d"].columns} == {"image": 0, "label": 3}


def test_every_op_has_a_place(tmp_path: Path) -> None:
    module = module_of(HEAD + DATA + PARAMS + LOGITS + "learn logits.* with adam(1) minimizing" + LOSS, tmp_path)

    def placed(op: Op) -> bool:
        return op.span is not None

    assert all(placed(op) for f in module.functions.values() for op in walk(f.block))


def test_elaboration_is_reproducible(tmp_path: Path) -> None:
    write_data(tmp_path)
    text = HEAD + DATA + BLOCKS
    first, second = (
        print_module(elaborate(parse(text, "s.alpha"), overrides={}, directory=tmp_path)) for _ in range(2)
    )
    assert first == second


def test_several_mistakes_are_told_at_once() -> None:
    text = HEAD + "param w: f23[pixels] = 0\nparam u: f32[pixls] = 0\nlet x = y\n"
    with pytest.raises(Diagnostics) as caught:
        elaborate(parse(text, "s.alpha"), overrides={}, directory=Path())
    assert [d.code for d in caught.value.diagnostics] == ["E115", "E110", "E110"]
