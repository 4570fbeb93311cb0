"""What a matrix instruction is: a wave of threads multiplies two small matrices of bf16 and adds the product to a third
in f32, of which each thread (*lane*) holds a few elements. A target that has one describes it here and defines

    <c x float> @gpu_matrix(<a x i32>, <b x i32>, <c x float>)  the instruction: words are two bf16, the first term low
    i32 @gpu_words(<2 x float>)                                 two f32 rounded to bf16: nearest, ties to even

A lane has a place `line` and a place `block` in its wave. It holds, of some lines of each operand, blocks of eight
consecutive terms: so it loads 16 bytes at a time, and what an instruction takes of terms is in an order of its own, the
same for both operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

BLOCK = 8  # consecutive terms that a lane loads at a time
WORDS = BLOCK // 2
TERMS = 32  # in the memory of a block of threads at a time


@dataclass(frozen=True)
class Sums:
    """The rows (or columns) of the result that a lane has: `count` of an instruction's. The i-th is `line` times the
    lane's line, `block` times its block, i % run, and (i // run) `apart`."""

    count: int
    run: int
    apart: int
    line: int = 0
    block: int = 0


@dataclass(frozen=True)
class Matrix:
    """One instruction.

    name       in kernels' sources
    lanes      of a wave
    rows, columns, terms    that it multiplies
    lines      how many lines the lanes of a wave are at
    inner      whether neighbours are at the same line and at the next block, rather than the other way round
    halves     at which distances from its line a lane holds lines of the first operand
    blocks     how many lanes hold different blocks of a line
    each       how many blocks of a line a lane holds
    down, across    the lane's sums
    """

    name: str
    lanes: int
    rows: int
    columns: int
    terms: int
    lines: int
    inner: bool
    blocks: int
    each: int
    down: Sums
    across: Sums
    halves: tuple[int, ...] = (0,)

    @property
    def depth(self) -> int:
        """Terms of which all lanes together hold the blocks that each loads at a time."""
        return BLOCK * self.blocks * self.each

    @property
    def words(self) -> int:
        """Words of a line that a lane gives to one instruction."""
        return WORDS * self.each * self.terms // self.depth

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of the three vectors that `gpu_matrix` takes."""
        return self.words * len(self.halves), self.words, self.down.count * self.across.count
