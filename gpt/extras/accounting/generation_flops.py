"""Count the FLOPs of generating a text; a multiply-add counts as two."""

from dataclasses import dataclass

from gpt.config import ModelConfig
from gpt.model.flops import flops_by_part, forward_flops, matmul_parameters


def decode_flops(config: ModelConfig, batch: int, keys: int) -> int:
    """Count the FLOPs of one new token in each of `batch` sequences, with a cache.

    The token attends to `keys` positions, its own included.
    """
    return sum(flops_by_part(config, batch, 1, keys).values())


@dataclass(frozen=True)
class GenerationFlops:
    """The FLOPs of `new` tokens after `prompt` tokens, with and without a cache, at batch size 1.

    Step i, counted from 1, feeds back the i-th new token: the model reads prompt + i tokens.
    Without a cache all of them go through the model, with a cache only the newest. Step 1 is the
    first pass that a cache makes cheap.

    A generator that stops after `new` tokens does not feed the last one back: with a cache it
    computes prompt + `new` - 1 positions, and the steps here prompt + `new`.
    """

    config: ModelConfig
    prompt: int
    new: int

    def naive_step(self, step: int) -> int:
        """Count the FLOPs of one step without a cache."""
        return forward_flops(self.config, 1, self.prompt + step)

    def cached_step(self, step: int) -> int:
        """Count the FLOPs of one step with a cache."""
        return decode_flops(self.config, 1, self.prompt + step)

    @property
    def prefill(self) -> int:
        """Count the FLOPs of the pass of the prompt, which fills the cache."""
        return forward_flops(self.config, 1, self.prompt)

    @property
    def naive(self) -> int:
        """Count the FLOPs of all steps without a cache.

        A pass over L tokens takes a L + b L^2 FLOPs, where a and b are `_per_position` and
        `_per_pair`. L grows by one in each step, so that the sum is cubic in `new`.
        """
        squares = _sum_of_squares(self.prompt + self.new) - _sum_of_squares(self.prompt)
        return self._per_position * self.naive_positions + self._per_pair * squares

    @property
    def cached(self) -> int:
        """Count the FLOPs of the prefill and of all steps with a cache: quadratic in `new`.

        Each step computes one position, and pairs it with as many keys as the same step has
        positions without a cache.
        """
        pairs = self.naive_positions
        return self.prefill + self._per_position * self.new + self._per_pair * pairs

    @property
    def naive_positions(self) -> int:
        """Count the positions of all steps without a cache: prompt + 1, ..., prompt + `new`."""
        return self.new * self.prompt + self.new * (self.new + 1) // 2

    @property
    def cached_positions(self) -> int:
        """Count the positions of the prefill and of all steps with a cache."""
        return self.prompt + self.new

    @property
    def _per_position(self) -> int:
        """Count the FLOPs of one position in the linear layers: two for each weight."""
        return 2 * matmul_parameters(self.config)

    @property
    def _per_pair(self) -> int:
        """Count the FLOPs of one query and one key in all layers.

        A score and a weighted sum take n_embd multiply-adds each, which are two FLOPs each.
        """
        return 2 * 2 * self.config.n_embd * self.config.n_layer


def _sum_of_squares(n: int) -> int:
    """Return 1^2 + 2^2 + ... + n^2."""
    return n * (n + 1) * (2 * n + 1) // 6
