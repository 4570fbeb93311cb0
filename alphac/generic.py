"""Generic systems, which calibration times the kernels of: dense layers of several sizes, and small relatives of what
people train. Sizes are nobody's in particular."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DENSE = """system calibration
dim inputs = {inputs}, hidden = {hidden}, classes = {classes}, batch = {batch}
grain {grain} of batch

data points from "points.npz" {{
    x: f32[inputs] = x
    label: i32[]   = label
}}

param w1: f32[inputs, hidden] = glorot
param w2: f32[hidden, classes] = glorot
param b, scale, shift: f32[hidden] = 0.5

region logits(x: f32[batch, inputs]) -> f32[batch, classes] {{
    layer_norm({activation}(x @ w1 + b), scale, shift) @ w2
}}

learn logits.* with adam(1e-3) minimizing {{ mean(cross_entropy(logits(x), label)) }}

train on points for {steps} steps
"""
ATTENTION = """system calibration
dim vocab = {vocab}, time = {time}, width = {width}, heads = {heads}, layers = {layers}, batch = {batch}
dim head = width / heads
grain {grain} of batch

data points from "points.npz" {{
    token: i32[time] = x
    next: i32[time]  = label
}}

param embed: f32[vocab, width] = normal(0.02)
param place: f32[time, width] = normal(0.02)
param unembed: f32[width, vocab] = normal(0.02)
param scale, shift: f32[width] = 0.5

block layer(x: f32[batch, time, width]) -> f32[batch, time, width] {{
    param scale1, shift1, scale2, shift2: f32[width] = 0.5
    param qkv: f32[width, 3, heads, head] = normal(0.02)
    param out: f32[heads, head, width] = normal(0.02)
    param up: f32[width, 3 * width] = normal(0.02)
    param down: f32[3 * width, width] = normal(0.02)
    q, k, v = einsum("btw, wshd -> sbhtd", layer_norm(x, scale1, shift1), qkv)
    x = x + einsum("bhtd, hdw -> btw", attention(q, k, v, causal), out)
    x + {activation}(layer_norm(x, scale2, shift2) @ up) @ down
}}

region logits(token: i32[batch, time]) -> f32[batch, time, vocab] {{
    h = embed[token] + place
    repeat layers {{ h = layer(h) }}
    layer_norm(h, scale, shift) @ unembed
}}

learn logits.* with clipped(1, adamw(1e-3)) minimizing {{ mean(cross_entropy(logits(token), next)) }}

train on points for {steps} steps
"""
CONVOLUTION = """system calibration
dim rows = {rows}, columns = {rows}, channels = {channels}, classes = 12, batch = {batch}
dim down = 3, across = 3, edges = {edges}, strokes = {strokes}
dim half_rows = rows / 2, half_columns = columns / 2
dim features = half_rows * half_columns * strokes
grain {grain} of batch

data points from "points.npz" {{
    image: f32[rows, columns, channels] = x
    label: i32[] = label
}}

block whole(x, to) {{
    param kernel: f32[down, across, axis(x, -1), to] = he
    {activation}(batch_norm(conv2d(x, kernel, rows, columns, padding = 1), to))
}}

block halved(x, to) {{
    param kernel: f32[down, across, axis(x, -1), to] = he
    h = {pool}({pool}(x, rows, half_rows), columns, half_columns)
    {activation}(conv2d(h, kernel, half_rows, half_columns, padding = 1))
}}

region logits(image: f32[batch, rows, columns, channels]) -> f32[batch, classes] {{
    dense(reshape(halved(whole(image, edges), strokes), batch, features), classes)
}}

learn logits.* with momentum(1e-3) minimizing {{ mean(cross_entropy(logits(image), label)) }}

train on points for {steps} steps
"""
DISTANCES = """system calibration
dim features = {features}, clusters = {clusters}, batch = {batch}
grain {grain} of batch

data points from "points.npz" {{
    x: f32[features] = x
}}

state centroid: f32[clusters, features] = normal(1)

transition {{
    member = one_hot(argmin(squared_distance(x, centroid), clusters), clusters)
    count = sum(member, batch)
    total = einsum("bk, bf -> kf", member, x)
    centroid' = where(count > 0, 0.8 * centroid + 0.2 * total / count, centroid)
}}

train on points for {steps} steps
"""
RECURRENCE = """system calibration
dim time = {time}, inputs = {inputs}, width = {width}, classes = 16, batch = {batch}
dim again = width
grain {grain} of batch

data points from "points.npz" {{
    x: f32[time, inputs] = x
    label: i32[] = label
}}

param into: f32[inputs, width] = glorot
param over: f32[width, again] = glorot
param keep: f32[inputs, width] = glorot
param out: f32[width, classes] = glorot

region logits(x: f32[batch, time, inputs]) -> f32[batch, classes] {{
    h: f32[batch, width] = 0
    scan time {{
        kept = sigmoid(x @ keep)
        h = kept * h + (1 - kept) * tanh(x @ into + rename(h @ over, again, width))
    }}
    h @ out
}}

learn logits.* with adam(1e-3) minimizing {{ mean(cross_entropy(logits(x), label)) }}

train on points for {steps} steps
"""
REGRESSION = """system calibration
dim inputs = {inputs}, batch = {batch}
grain {grain} of batch

data points from "points.npz" {{
    x: f32[inputs] = x
    label: f32[]   = label
}}

param w: f32[inputs] = normal(0.1)
param b: f32[] = 0

region logit(x: f32[batch, inputs]) -> f32[batch] {{ x @ w + b }}

learn logit.* with sgd(0.1) minimizing {{ mean(binary_cross_entropy(logit(x), label)) }}

train on points for {steps} steps
"""
STEPS = 400  # that two roles train together


@dataclass(frozen=True)
class Generic:
    """One of the generic systems: its text, what is filled in, the shape of an example and below what its labels are
    (with as many as the last shape says)."""

    text: str
    values: Mapping[str, Any]
    example: tuple[int, ...]
    classes: int = 0
    labels: tuple[int, ...] = ()
    whole: bool = False  # whether examples are whole numbers, as labels are


def dense(inputs: int, hidden: int, classes: int, batch: int, grain: int, activation: str) -> Generic:
    """Two dense layers, normalized."""
    values = {"inputs": inputs, "hidden": hidden, "classes": classes, "batch": batch, "grain": grain}
    return Generic(DENSE, {**values, "activation": activation}, (inputs,), classes)


def _attention(vocab: int, time: int, width: int, heads: int, layers: int, batch: int, activation: str) -> Generic:
    values = {"vocab": vocab, "time": time, "width": width, "heads": heads, "layers": layers, "batch": batch}
    return Generic(
        ATTENTION, {**values, "grain": batch // 2, "activation": activation}, (time,), vocab, (time,), whole=True
    )


def _convolution(rows: int, channels: int, edges: int, strokes: int, batch: int, activation: str, pool: str) -> Generic:
    values = {"rows": rows, "channels": channels, "edges": edges, "strokes": strokes, "batch": batch}
    made = {**values, "grain": batch // 4, "activation": activation, "pool": pool}
    return Generic(CONVOLUTION, made, (rows, rows, channels), 12)


def _distances(features: int, clusters: int, batch: int) -> Generic:
    values = {"features": features, "clusters": clusters, "batch": batch, "grain": batch // 8}
    return Generic(DISTANCES, values, (features,))


def _recurrence(time: int, inputs: int, width: int, batch: int) -> Generic:
    values = {"time": time, "inputs": inputs, "width": width, "batch": batch, "grain": batch // 4}
    return Generic(RECURRENCE, values, (time, inputs), 16)


def _regression(inputs: int, batch: int, grain: int) -> Generic:
    return Generic(REGRESSION, {"inputs": inputs, "batch": batch, "grain": grain}, (inputs,), 2)


SYSTEMS = (
    dense(32, 64, 16, 64, 8, "relu"),
    dense(64, 256, 32, 512, 32, "tanh"),
    dense(784, 512, 10, 128, 16, "relu"),
    dense(256, 1024, 256, 256, 16, "gelu"),
    dense(1024, 1024, 512, 128, 8, "silu"),
    _attention(96, 48, 48, 3, 2, 48, "gelu"),
    _attention(512, 96, 96, 6, 3, 16, "relu"),
    _convolution(12, 3, 24, 24, 64, "gelu", "avg_pool"),
    _convolution(16, 1, 8, 48, 96, "relu", "max_pool"),
    _distances(48, 30, 256),
    _distances(200, 64, 512),
    _recurrence(24, 20, 96, 64),
    dense(20, 40, 7, 96, 12, "relu"),
    dense(48, 112, 11, 160, 20, "relu"),
    dense(100, 300, 26, 192, 48, "gelu"),
    dense(40, 72, 3, 1024, 64, "silu"),
    _attention(160, 72, 80, 5, 3, 56, "gelu"),
    _attention(100, 40, 56, 7, 6, 96, "tanh"),
    _convolution(20, 2, 40, 20, 80, "gelu", "max_pool"),
    _convolution(10, 1, 12, 28, 160, "silu", "avg_pool"),
    _distances(36, 12, 96),
    _distances(100, 25, 192),
    _recurrence(40, 24, 112, 48),
    _recurrence(16, 48, 160, 96),
    _regression(20, 200_000, 10),
    _regression(48, 20_000, 16),
)


def write_system(system: Generic, directory: Path, steps: int = STEPS) -> Path:
    """The source of a generic system beside its data."""
    directory.mkdir()
    random, count = np.random.default_rng(0), 2 * int(system.values["batch"])
    shape = (count, *system.example)
    arrays: dict[str, npt.NDArray[Any]] = {
        "x": random.integers(0, system.classes, shape, np.int32)
        if system.whole
        else random.standard_normal(shape, np.float32)
    }
    if system.classes:
        arrays["label"] = random.integers(0, system.classes, (count, *system.labels), np.int32)
    np.savez(directory / "points.npz", allow_pickle=False, **arrays)
    path = directory / "calibration.alpha"
    path.write_text(system.text.format(**system.values, steps=steps), encoding="utf-8")
    return path
