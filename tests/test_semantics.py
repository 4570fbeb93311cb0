"""What the words of the language mean, against NumPy, against each other, and natively."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gradcheck import differences
from prelude_references import Arithmetic, Array, Small, cross_entropy, frame, standardized
from safetensors.numpy import save_file

from alphac import pipeline
from alphac.diagnostics import Diagnostics
from alphac.runtime.inference import evaluate, predictions

DIMS = {"layers": 3, "width": 4, "time": 5, "batch": 6}
HEAD = frame(DIMS) + "dim again = width\n"
DATA = 'data d from "d.npz" {\n x: f32[width] = x\n track: f32[time, width] = track\n}\n'


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def arrays() -> dict[str, Array]:
    return {"x": draw(6, 4), "track": draw(6, 5, 4)}


def small(
    text: str, directory: Path, overrides: dict[str, str] | None = None, arithmetic: Arithmetic = "exact"
) -> Small:
    return Small(HEAD + text, directory, arrays(), arithmetic=arithmetic, overrides=overrides)


# ------------------------------------------------------------------------------------------------- order of statements
GAME = (
    "learn a with sgd(0.5) minimizing {{ {0} (a - 2 * c) ** 2 }}\n learn c with sgd(0.25) minimizing {{ (c + a) ** 2 }}"
)


@pytest.mark.parametrize("together", [False, True])
def test_two_learners(together: bool, tmp_path: Path) -> None:
    """The second reads what the first has just written, unless they learn together."""
    statements = GAME.format("")
    statements = f"together {{\n {statements}\n}}\n" if together else statements.replace("\n ", "\n") + "\n"
    system = small("param a: f64[] = 3, c: f64[] = 1\n" + statements, tmp_path)
    a, c = 3.0, 1.0
    for _ in range(4):
        losses = system.step()
        next_a = a - 0.5 * 2 * (a - 2 * c)
        seen = a if together else next_a
        assert losses == pytest.approx({"loss": (a - 2 * c) ** 2, "loss_2": (c + seen) ** 2})
        a, c = next_a, c - 0.25 * 2 * (c + seen)
        assert (system.states["a"], system.states["c"]) == pytest.approx((a, c), rel=1e-14)


def test_a_learner_does_not_move_what_it_does_not_learn(tmp_path: Path) -> None:
    text = "param a: f64[] = 3, c: f64[] = 1\nlearn a with sgd(0.5) minimizing { (a * c) ** 2 }\n"
    system = small(text + "transition { twice' = 2 * a }\nstate twice: f64[] = 0\n", tmp_path)
    system.step()
    assert (system.states["a"], system.states["c"], system.states["twice"]) == (0, 1, 0)
    system.states["a"] = np.asarray(1.0)
    system.states["c"] = np.asarray(0.5)
    system.step()
    assert (system.states["a"], system.states["c"], system.states["twice"]) == (0.75, 0.5, 1.5)


def test_learning_together_with_a_transition_reads_the_entry(tmp_path: Path) -> None:
    body = "learn a with sgd(1) minimizing { a ** 2 / 4 }\n transition { seen' = a }\n"
    declared = "param a: f64[] = 8\nstate seen: f64[] = 0\n"
    apart, at_once = small(declared + body, tmp_path), small(declared + f"together {{\n {body} }}\n", tmp_path)
    for system in (apart, at_once):
        system.step()
    assert (apart.states["a"], apart.states["seen"]) == (4, 4)
    assert (at_once.states["a"], at_once.states["seen"]) == (4, 8)


def test_primes_are_next_versions_in_any_order_of_use(tmp_path: Path) -> None:
    text = """
state a: f64[] = 1, b: f64[] = 10, c: f64[] = 0
transition {
    a' = b
    b' = a            # the version on entry: this is a swap
    c' = a' - b' + a
}
"""
    system = small(text, tmp_path)
    system.step()
    assert [system.states[n] for n in "abc"] == [10, 1, 10]
    system.step()
    assert [system.states[n] for n in "abc"] == [1, 10, 1]


def test_a_prime_is_written_once_and_read_after(tmp_path: Path) -> None:
    for body in ("a' = 1\n a' = 2", "b' = a'\n a' = 1"):
        with pytest.raises(Diagnostics):
            small(f"state a: f64[] = 0, b: f64[] = 0\ntransition {{\n {body}\n}}\n", tmp_path)


# --------------------------------------------------------------------------------------------------------------- loops
LAYER = """
block layer(x) {
    param w: f32[width, again] = glorot         param b: f32[width] = normal(0.1)
    tanh(rename(x @ w, again, width) + b)
}
region f(x: f32[batch, width]) -> f32[batch, width] { BODY }
learn f.* with momentum(0.1) minimizing { mean(f(x) ** 2) }
"""


def test_repeat_is_its_blocks_one_after_another(tmp_path: Path) -> None:
    """To the last bit: values, gradients, and what the optimizer makes of them."""
    loop = small(DATA + LAYER.replace("BODY", "repeat layers { x = layer(x) }\n x"), tmp_path)
    line = small(DATA + LAYER.replace("BODY", "x = layer(x)\n x = layer(x)\n layer(x)"), tmp_path)
    paths = ["f.layer", "f.layer_2", "f.layer_3"]
    assert loop.states["f.layer.w"].shape == (3, 4, 4)
    for i, path in enumerate(paths):
        line.states |= {f"{path}.{name}": loop.states[f"f.layer.{name}"][i] for name in "wb"}
    x = arrays()["x"]
    for _ in range(2):
        np.testing.assert_array_equal(loop.region("f", x=x), line.region("f", x=x))
        assert loop.step() == line.step()
        for i, path in enumerate(paths):
            for name in "wb":
                np.testing.assert_array_equal(line.states[f"{path}.{name}"], loop.states[f"f.layer.{name}"][i])
                velocity = line.states[f"momentum.{path}.{name}.v"]
                np.testing.assert_array_equal(velocity, loop.states[f"momentum.f.layer.{name}.v"][i])
    h = x.astype(np.float64)
    for i in range(3):
        h = np.tanh(h @ loop.states["f.layer.w"][i] + loop.states["f.layer.b"][i])
    np.testing.assert_allclose(loop.region("f", x=x), h, rtol=1e-5, atol=1e-6)


RECURRENT = """
param u: f32[width, again] = glorot, w: f32[width, again] = glorot
fn cell(h, x) = tanh(rename(h @ u + x @ w, again, width))
region f(track: f32[batch, time, width]) -> f32[batch, width] {
    h: f32[batch, width] = 0
    BODY
    h
}
learn f.* with sgd(0.1) minimizing { mean((f(track) - 1) ** 2) }
"""


def test_scan_is_its_steps_one_after_another(tmp_path: Path) -> None:
    loop = small(DATA + RECURRENT.replace("BODY", "scan time { h = cell(h, track) }"), tmp_path)
    steps = "\n".join(f"h = cell(h, take(track, {t}, time))" for t in range(5))
    line = small(DATA + RECURRENT.replace("BODY", steps), tmp_path)
    track = arrays()["track"]
    np.testing.assert_array_equal(loop.region("f", track=track), line.region("f", track=track))
    u, w, h = (*(loop.states[n].astype(np.float64) for n in "uw"), np.zeros((6, 4)))
    for t in range(5):
        h = np.tanh(h @ u + track[:, t] @ w)
    np.testing.assert_allclose(loop.region("f", track=track), h, rtol=1e-5, atol=1e-6)
    for _ in range(3):
        assert loop.step()["loss"] == pytest.approx(line.step()["loss"], rel=1e-6)
        for n in "uw":  # the sums over time may be put together in another order
            np.testing.assert_allclose(loop.states[n], line.states[n], rtol=1e-5, atol=1e-7)


def test_a_scan_shares_its_block_and_a_repeat_does_not(tmp_path: Path) -> None:
    text = """
block cell(h, x) {
    param u: f32[width] = 0.5
    h * u + x
}
region f(track: f32[batch, time, width]) -> f32[batch, time, width] {
    h: f32[batch, width] = 0
    KIND time {
        h = cell(h, track)
        h
    }
}
learn f.* with sgd(0.1) minimizing { mean(f(track)) }
"""
    scan, repeat = (small(DATA + text.replace("KIND", kind), tmp_path) for kind in ("scan", "repeat"))
    assert (scan.states["f.cell.u"].shape, repeat.states["f.cell.u"].shape) == ((4,), (5, 4))
    track = arrays()["track"]
    wanted, h = np.empty_like(track), np.zeros((6, 4))
    for t in range(5):
        wanted[:, t] = h = h * 0.5 + track[:, t]
    for system in (scan, repeat):
        np.testing.assert_allclose(system.region("f", track=track), wanted, rtol=1e-6, atol=1e-6)
    for system in (scan, repeat):
        system.step()
    moved = 0.5 - repeat.states["f.cell.u"]
    np.testing.assert_allclose(0.5 - scan.states["f.cell.u"], moved.sum(0), rtol=1e-5, atol=1e-7)


# ----------------------------------------------------------------------------------------------------------- functions
def test_functions_are_used_anywhere_and_taken_as_values(tmp_path: Path) -> None:
    text = """
fn shifted(x, by = 1, times = 2) = times * (x + by)
fn twice(f, x) = f(f(x))
state a: f64[] = 0, b: f64[] = 0, c: f64[] = 0, d: f64[] = 0
let five = shifted(1, times = 2.5)
transition {
    a' = shifted(3)
    b' = shifted(3, times = 10, by = -1)
    c' = twice(shifted, a')
    d' = five + twice(sqrt, 16)
}
"""
    system = small(text, tmp_path)
    system.step()
    assert [system.states[n] for n in "abcd"] == [8, 20, 38, 7]


def test_a_name_inside_a_function_is_its_own(tmp_path: Path) -> None:
    text = """
let y = 100
fn inner(x) { y = x + 1; y * 2 }
state a: f64[] = 0
transition { y = 5; a' = inner(y) + y }
"""
    system = small(text, tmp_path)
    system.step()
    assert system.states["a"] == 17


def test_used_files_bring_all_kinds_of_declarations(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    part = """
dim made = 2
let rate = 0.5
optimizer slow(rate) { p' = p - rate / 10 * g }
initializer quarter = 0.25
block project(x) { param w: f64[width, made] = quarter; x @ w }
fn square(x) = x * x
"""
    (tmp_path / "parts" / "part.alpha").write_text(part)
    text = 'use "parts/part.alpha"\n' + DATA.replace("f32", "f64") + "param b: f64[made] = 0\n"
    text += "region f(x: f64[batch, width]) -> f64[batch, made] { project(x) + b }\n"
    text += "learn f.* with slow(rate) minimizing { mean(square(f(x))) }\n"
    system = small(text, tmp_path, arithmetic="f64")
    x = arrays()["x"].astype(np.float64)
    w = np.full((4, 2), 0.25)
    np.testing.assert_array_equal(system.states["f.project.w"], w)
    system.step()
    np.testing.assert_allclose(system.states["f.project.w"], w - 0.05 * x.T @ (2 * (x @ w) / 12), rtol=1e-12)
    assert system.states["b"].shape == (2,)
    still = small(text, tmp_path, {"rate": "0"}, arithmetic="f64")
    still.step()
    np.testing.assert_array_equal(still.states["f.project.w"], w)


# ---------------------------------------------------------------------------------------------------------------- --set
@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ({}, (0.5, 3, 6, 2)),
        ({"real": "0.25"}, (0.25, 3, 6, 2)),
        ({"real": "-1e-3"}, (-1e-3, 3, 6, 2)),
        ({"real": "7"}, (7, 3, 6, 2)),
        ({"whole": "5"}, (0.5, 5, 10, 2)),
        ({"flag": "false"}, (0.5, 3, 6, 1)),
        ({"whole": "4", "real": "2", "flag": "false"}, (2, 4, 8, 1)),
    ],
)
def test_set(overrides: dict[str, str], wanted: tuple[float, ...], tmp_path: Path) -> None:
    text = """
let real = 0.5
let whole = 3
let double = 2 * whole
let flag = true
dim many = whole
state a: f64[] = 0, b: f64[many] = 0, c: f64[] = 0, e: f64[] = 0
transition {
    a' = real
    b' = b + 1
    c' = double
    e' = if flag { 2 } else { 1 }
}
"""
    system = small(text, tmp_path, overrides)
    system.step()
    found = system.states
    assert (found["a"], len(found["b"]), found["c"], found["e"]) == wanted


@pytest.mark.parametrize("wrong", ["absent=1", "rate=fast", "seed=-1", "seed=x", "name=1", "batch=4"])
def test_what_cannot_be_set(wrong: str, tmp_path: Path) -> None:
    name, _, value = wrong.partition("=")
    text = "let rate = 1\nlet name = softmax\nstate a: f64[] = 0\ntransition { a' = rate }\n"
    with pytest.raises(Diagnostics) as caught:
        small(text, tmp_path, {name: value})
    assert [d.code for d in caught.value.diagnostics] == ["E139"]


# -------------------------------------------------------------------------------------------------------------- batches
RAGGED = """
data d from "d.npz" {
    x: f64[width] = x
    y: i32[]      = y
}
param a: f64[width] = 1, w: f64[width, again] = normal(1)
state average: f64[width] = 0, variance: f64[width] = 0, largest: f64[] = 0
fn normalized(h) = (h - mean(h, batch)) * rsqrt(var(h, batch) + 1e-5)
learn a, w with sgd(1) minimizing { mean(cross_entropy(normalized(tanh(x * a)) @ w, y)) }
transition {
    average' = mean(x, batch)
    variance' = var(x, batch)
    largest' = max(x)
}
train on d for 1 epoch, keep ragged batch
"""


def test_a_ragged_batch_is_as_if_the_rest_were_not_there(tmp_path: Path) -> None:
    """Statistics, losses and slopes through statistics are of the four real examples, whatever stands behind them."""
    x, y = draw(6, 4).astype(np.float64), np.arange(6, dtype=np.int32) % 4
    system = Small(HEAD + RAGGED, tmp_path, {"x": x, "y": y})
    system.columns["x"] = np.concatenate([x[:4], np.full((2, 4), 1e3)])
    given = [system.states["a"], system.states["w"]]
    found = system.run("step", step=0, valid=4)

    def loss(a: Array, w: Array) -> float:
        return float(cross_entropy(standardized(np.tanh(x[:4] * a), (0,), 1e-5) @ w, y[:4]).mean())

    assert found["loss", "loss"] == pytest.approx(loss(*given), rel=1e-12)
    for place, name in enumerate("aw"):
        slopes = differences(lambda values: loss(*values), given, place)
        np.testing.assert_allclose(given[place] - found["state", name], slopes, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found["state", "average"], x[:4].mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["state", "variance"], x[:4].var(0), rtol=1e-12)
    assert found["state", "largest"] == x[:4].max()


@pytest.mark.parametrize("together", [False, True])
def test_two_learners_move_the_statistics_of_a_block_once(together: bool, tmp_path: Path) -> None:
    text = """
param a: f32[width] = 1, c: f32[width] = 1
region f(x: f32[batch, width]) -> f32[batch, width] { batch_norm(x, width) * a * c }
"""
    learners = "".join(f" learn {name} with sgd(0.1) minimizing {{ mean(f(x) ** 2) }}\n" for name in "ac")
    system = small(DATA + text + (f"together {{\n{learners}}}\n" if together else learners), tmp_path)
    system.step()
    x = arrays()["x"].astype(np.float64)
    np.testing.assert_allclose(system.states["f.batch_norm.average"], 0.1 * x.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(system.states["f.batch_norm.variance"], 0.9 + 0.1 * x.var(0), rtol=1e-5)


# ------------------------------------------------------------------------------------------------------------ natively
NATIVE = """
data d from "d.npz" {
    x: f32[width] = x
    y: i32[]      = y
    hold out test last 50%
    shuffle seed 1
}
param w: f32[width, again] = glorot
region logits(x: f32[batch, width]) -> f32[batch, again] { dropout(x, 0.5) @ w }
learn w with adam(0.1) minimizing { mean(cross_entropy(logits(x), y)) }
evaluate accuracy on test = mean(argmax(logits(x), again) == y)
evaluate loss on test = mean(cross_entropy(logits(x), y))
evaluate spread on train { sqrt(mean(x ** 2) - mean(x) ** 2) }
evaluate largest on train = max(logits(x))
train on d for 2 epochs
"""


def test_evaluate_is_over_the_whole_split_and_its_last_batch_is_ragged(tmp_path: Path) -> None:
    x, y = draw(46, 4), (np.arange(46) % 4).astype(np.int32)
    x[-1] = 50  # the one example of the test split's last batch weighs as much as any other
    np.savez(tmp_path / "d.npz", x=x, y=y)
    source = tmp_path / "s.alpha"
    source.write_text(HEAD + NATIVE, encoding="utf-8")
    bundle = pipeline.compile_file(source, out=tmp_path / "bundle").path
    w = draw(4, 4)
    states = {"w": w, "adam.w.m": w, "adam.w.v": w, "adam.w.t": np.array(0, np.int32)}
    save_file(states, tmp_path / "p.safetensors")
    found = evaluate(bundle, tmp_path / "p.safetensors")
    train, test = slice(0, 23), slice(23, 46)
    logits = x.astype(np.float64) @ w
    top = logits.max(1)
    entropy = np.log(np.exp(logits - top[:, None]).sum(1)) + top - logits[np.arange(46), y]
    wanted = {
        "accuracy": (logits.argmax(1) == y)[test].mean(),
        "loss": entropy[test].mean(),
        "spread": x[train].astype(np.float64).std(),
        "largest": logits[train].max(),
    }
    assert found == pytest.approx(wanted, rel=1e-5)
    made = predictions(bundle, "logits", {"x": x}, tmp_path / "p.safetensors")
    np.testing.assert_allclose(next(iter(made.values())), logits, rtol=1e-4, atol=1e-5)
