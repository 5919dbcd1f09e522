"""Count the FLOPs of generating a text; a multiply-add counts as two."""

from dataclasses import dataclass

from gpt.config import ModelConfig
from gpt.model.flops import flops_by_part, forward_flops, matmul_parameters


def decode_flops(config: ModelConfig, batch: int, keys: int) -> int:
    """Count the FLOPs of one new token in each sequence, with a cache; `keys` positions, the new one included."""
    return sum(flops_by_part(config, batch, 1, keys).values())


@dataclass(frozen=True)
class GenerationFlops:
    """The FLOPs of `new` tokens after `prompt` tokens, with and without a cache, at batch size 1.

    Step i, counted from 1, reads prompt + i tokens: without a cache all of them go through the model, with one
    only the newest. The count thus begins where the first new token is fed back, which is the first pass
    that a cache makes cheap, and ends with the last one fed back: prompt + `new` positions with a cache. A
    generator that stops at `new` tokens makes the pass of the prompt, from which the first comes, and does
    not feed the last one back: prompt + `new` - 1 positions.
    """

    config: ModelConfig
    prompt: int
    new: int

    def naive_step(self, step: int) -> int:
        return forward_flops(self.config, 1, self.prompt + step)

    def cached_step(self, step: int) -> int:
        return decode_flops(self.config, 1, self.prompt + step)

    @property
    def prefill(self) -> int:
        return forward_flops(self.config, 1, self.prompt)

    @property
    def naive(self) -> int:
        """Cubic in `new`: a pass over L tokens takes a L + b L^2 FLOPs, and L grows by one in each step."""
        a, b = 2 * matmul_parameters(self.config), 4 * self.config.n_embd * self.config.n_layer
        squares = _sum_of_squares(self.prompt + self.new) - _sum_of_squares(self.prompt)
        return a * self.naive_positions + b * squares

    @property
    def cached(self) -> int:
        """Quadratic in `new`; the prefill is included."""
        a, b = 2 * matmul_parameters(self.config), 4 * self.config.n_embd * self.config.n_layer
        return self.prefill + a * self.new + b * self.naive_positions

    @property
    def naive_positions(self) -> int:
        return self.new * self.prompt + self.new * (self.new + 1) // 2

    @property
    def cached_positions(self) -> int:
        return self.prompt + self.new


def _sum_of_squares(n: int) -> int:
    return n * (n + 1) * (2 * n + 1) // 6
