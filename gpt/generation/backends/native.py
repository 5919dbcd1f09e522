"""Next-token logits from the C++ engine of `gpt.kernels`, and tokens sampled inside it."""

import itertools
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.backends import TokenIds
from gpt.generation.backends.window import Window
from gpt.kernels.decoding.engine import Engine
from gpt.model import GPT
from gpt.model.gpt import outside_vocabulary

MakeEngine = Callable[[int], Engine]
"""Makes an engine with caches for so many sequences."""


class NativeBackend:
    """Next-token logits from an engine, and tokens sampled inside it.

    Args:
        make_engine: called at the first use, when it is known how many sequences there are.
        model: that the engine runs.
        slide_chunk: see `Window`; None: a quarter of the window.
        prefill_chunk: most positions computed at a time; None: as many as the engine has room for.
    """

    def __init__(
        self, make_engine: MakeEngine, model: GPT, slide_chunk: int | None = None, prefill_chunk: int | None = None
    ) -> None:
        self.window, self.vocab_size = Window.build(model.config.block_size, slide_chunk), model.vocab_size
        self._make_engine, self._prefill_chunk = make_engine, prefill_chunk
        self._engine: Engine | None = None
        self._rows: list[int] = []  # the engine's sequence of each row
        self._held: list[list[int]] = []  # tokens stored in each of the engine's sequences

    @property
    def cache_bytes(self) -> int:
        return self._engine.cache_bytes if self._engine is not None else 0

    def next_logits(self, contexts: Sequence[TokenIds]) -> Tensor:
        windows = self._windows(contexts)
        engine = self._store_all_but_newest(windows)
        newest = [window[-1] for window in windows]
        positions = [len(window) - 1 for window in windows]
        logits = engine.forward(newest, self._rows, positions, range(len(newest)))
        for row, token in zip(self._rows, newest, strict=True):
            self._held[row].append(token)
        return logits

    def room(self, contexts: Sequence[TokenIds]) -> int:
        """Return how many tokens `generate` can sample before a window has to move."""
        return self.window.size + 1 - max(len(context) - self.window.start(len(context)) for context in contexts)

    def generate(
        self,
        contexts: Sequence[TokenIds],
        uniforms: Tensor,
        params: SamplingParams,
        seen: Tensor | None,
        keep_logits: bool,
    ) -> tuple[list[list[int]], Tensor | None]:
        """Sample several tokens after each context; arguments and result are those of `Engine.generate`.

        Raises:
            NotFiniteError: logits are not finite.
        """
        windows = self._windows(contexts)
        engine = self._store_all_but_newest(windows)
        newest, positions = [window[-1] for window in windows], [len(window) - 1 for window in windows]
        sampled, logits = engine.generate(self._rows, newest, positions, uniforms, params, seen, keep_logits)
        for row, token, more in zip(self._rows, newest, sampled, strict=True):
            self._held[row] += [token, *more[:-1]]
        return sampled, logits

    def verify(
        self,
        places: Sequence[int],
        contexts: Sequence[TokenIds],
        drafts: Sequence[Sequence[int]],
        uniforms: Sequence[Sequence[float]],
        params: SamplingParams,
        seen: Tensor | None,
        keep_logits: bool,
    ) -> list[tuple[list[int], Tensor | None]]:
        """Sample after each context, and after each of its drafts as if those before it were accepted.

        Args:
            places: B different rows of this backend's, in order; the others are left alone.
            contexts: of these rows.
            drafts: of each, at most as many as its window has room for.
            uniforms: one for the context and one for each draft.
            params: how to sample.
            seen: (B, V), see `Engine.generate`; overwritten.
            keep_logits: return them too.

        Returns:
            For each context its tokens, one more than drafts, -1 where logits are not finite; and the
            logits (tokens, V) or None.
        """
        windows = self._windows(contexts)
        engine = self._store_all_but_newest(windows, places)
        tokens: list[int] = []
        rows: list[int] = []
        positions: list[int] = []
        for place, window, draft in zip(places, windows, drafts, strict=True):
            row = self._rows[place]
            self._check(draft)
            tokens += [window[-1], *draft]
            rows += [row] * (1 + len(draft))
            positions += range(len(window) - 1, len(window) + len(draft))
            self._held[row] += [window[-1], *draft]
        sampled, logits = engine.verify(
            tokens, rows, positions, [u for each in uniforms for u in each], params, seen, keep_logits
        )
        sizes = [1 + len(draft) for draft in drafts]
        ends = list(itertools.accumulate(sizes))
        return [
            (sampled[end - size : end], None if logits is None else logits[end - size : end])
            for size, end in zip(sizes, ends, strict=True)
        ]

    def select(self, rows: Sequence[int]) -> None:
        if self._engine is None:
            return
        wanted = [self._rows[row] for row in rows]
        if len(wanted) > self._engine.sequences:
            self._engine = None  # the next call makes a larger one
            return
        free = (row for row in range(self._engine.sequences) if row not in wanted)
        chosen: list[int] = []
        for source in wanted:
            row = source
            if source in chosen:
                row = next(free)
                self._engine.copy(row, source, len(self._held[source]))
                self._held[row] = list(self._held[source])
            chosen.append(row)
        self._rows = chosen

    def _check(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.vocab_size:  # the engine would read past its embedding
                raise outside_vocabulary(token, self.vocab_size)

    def _windows(self, contexts: Sequence[TokenIds]) -> list[TokenIds]:
        return [self.window.of(context) for context in contexts]

    def _store_all_but_newest(self, windows: Sequence[TokenIds], places: Sequence[int] | None = None) -> Engine:
        """Compute what is not in the cache yet; windows that are equal are computed once.

        Args:
            windows: of some rows.
            places: of these rows; None: they are all.

        Raises:
            InputError: a token is outside the vocabulary.
        """
        self._check([window[-1] for window in windows])
        if self._engine is None:
            self._engine = self._make_engine(len(windows))
            self._rows = list(range(len(windows)))
            self._held = [[] for _ in windows]
        chosen = self._rows if places is None else [self._rows[place] for place in places]
        missing: dict[tuple[int, ...], list[int]] = {}
        for row, window in zip(chosen, windows, strict=True):
            old = list(window[:-1])
            if self._held[row][: len(old)] != old:
                missing.setdefault(tuple(old), []).append(row)
            else:
                del self._held[row][len(old) :]
        self._prefill((rows[0], window) for window, rows in missing.items())
        for window, (first, *others) in missing.items():
            for row in others:
                self._engine.copy(row, first, len(window))
                self._held[row] = list(window)
        return self._engine

    def _prefill(self, windows: Iterable[tuple[int, tuple[int, ...]]]) -> None:
        """Store the tokens of some rows, from the first that is not stored on."""
        assert self._engine is not None
        pending: list[tuple[int, int, int]] = []
        for row, window in windows:
            start = _common(self._held[row], window)
            self._check(window[start:])
            pending += [(window[position], row, position) for position in range(start, len(window))]
            self._held[row] = list(window)
        for part in _parts(len(pending), min(self._prefill_chunk or self._engine.max_tokens, self._engine.max_tokens)):
            tokens, cached, positions = (list(column) for column in zip(*pending[part], strict=True))
            self._engine.forward(tokens, cached, positions, wanted=())


def _parts(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _common(held: Sequence[int], window: Sequence[int]) -> int:
    """Length of the beginning that both share."""
    return next((i for i, (a, b) in enumerate(zip(held, window, strict=False)) if a != b), min(len(held), len(window)))
