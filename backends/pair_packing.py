"""Operands of a contraction as pairs of bf16: packed in f32 first, so that whatever is inlined just works, then
rounded."""

from __future__ import annotations

from alphac.backends.evaluation import Array, Frame, Index
from alphac.backends.indexing import Affine, number
from alphac.backends.packing import Packing, Part, Side
from alphac.backends.target import MATRIX_BF16
from alphac.backends.tiling import Tile, Tiling
from alphac.ir.core import Op
from alphac.ir.typesys import F32, Dim

SLACK = 32  # elements written behind the last


def suits_pairs(frame: Frame, op: Op, terms: int) -> bool:
    """Whether a contraction may and can be summed in pairs of its `terms` (of a shard)."""
    able = MATRIX_BF16 in frame.target.capabilities
    return able and op.name == "contract_fast" and op.result.type.dtype == F32 and terms % 2 == 0


class PairPacking(Packing):
    """Both operands are packed; a pair of terms is what `pairs_…` takes at a time. Places are those of the f32, but for
    rows that are packed term after term: a row's pair is side by side, so that rows are two elements apart."""

    multiply = "pairs"
    pair = 2

    def __init__(
        self, frame: Frame, rows: Side, columns: Side, summed: list[Dim], terms: int, tile: Tile, batch: list[Dim]
    ) -> None:
        super().__init__(frame, F32, rows, columns, summed, terms, tile, batch)
        self.rows_packed = self.columns_packed = True

    def rows_part(self, batch: Index, row: Affine, tile: Affine, first: Affine, plan: Tiling) -> Part:
        part = super().rows_part(batch, row, tile, first, plan)
        words = self._words("rows")
        return Part(words.name, part.start, part.across if part.along == 1 else 2, part.along)

    def pack_rows(
        self, batch: Index, row: Affine, tiles: tuple[Affine, Affine], first: Affine, terms: Affine, plan: Tiling
    ) -> None:
        super().pack_rows(batch, row, tiles, first, terms, plan)
        part, (start, stop), height = self.rows_part(batch, row, number(0), first, plan), tiles, self.tile.rows
        if part.along == 1:
            with self.frame.loop("r", start * height, stop * height, plan.rows) as r:
                self._round("narrow_words", "rows", r * part.across, self.frame.source.index(terms))
            return
        with self.frame.loop("m", start, stop, plan.rows // height) as m:
            at = self.rows_part(batch, row, m, first, plan).start
            self._round("interleave_words", "rows", at, f"{height}, {self.frame.source.index(terms)}")

    def columns_part(self, batch: Index, column: Affine, first: Affine, plan: Tiling, panel: Affine) -> Part:
        part = super().columns_part(batch, column, first, plan, panel)
        return Part(self._words("panel").name, part.start, part.across, part.along)

    def pack_columns(
        self, batch: Index, column: Affine, first: Affine, terms: Affine, plan: Tiling, panel: Affine
    ) -> None:
        super().pack_columns(batch, column, first, terms, plan, panel)
        at, width = self.columns_part(batch, column, first, plan, panel).start, self.tile.columns
        self._round("interleave_words", "panel", at, f"{width}, {self.frame.source.index(terms)}")

    def _words(self, of: str) -> Array:
        name = f"{of}_words"
        if name not in self.arrays:
            self.arrays[name] = self.frame.words(name, self.arrays[of].elements + SLACK)
        return self.arrays[name]

    def _round(self, function: str, of: str, at: Affine, counts: str) -> None:
        place = self.frame.source.index(at)
        source, words = self.arrays[of].name, self._words(of).name
        self.frame.source.line(f"{function}(address({words}, {place}), address({source}, {place}), {counts})")
