"""A model run by the C++ engine of `gpt.native`: its weights laid out, and a backend over them."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpt.config import SamplingParams
from gpt.errors import DeviceError
from gpt.generation.backends import Context
from gpt.generation.window import default_chunk, window_start
from gpt.model import GPT
from gpt.model.block import Block
from gpt.model.gpt import outside_vocabulary
from gpt.model.positions import LearnedPositions, Rotary, SinusoidalPositions
from gpt.model.quantized import BFloat16Linear, QuantizedLinear
from gpt.native.decoding import Engine, LayerWeights, Matrix, Weights, filled_up

KNOWN_MODULES = ("gpt.model", "gpt.training", "torch")
"""Where the classes of a model come from that the engine can stand for."""
MakeEngine = Callable[[int], Engine]
"""An engine with caches for so many rows."""


def weights_of(model: GPT) -> Weights:
    """A model's weights as the engine wants them; a copy, which later changes of the model do not reach.

    Raises:
        DeviceError: it is not on the CPU, or its modules are not those that a configuration builds.
    """
    if next(model.parameters()).device.type != "cpu":
        raise DeviceError("the native backend is for a CPU")
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise DeviceError("the native backend does not call hooks, and the model has some")
        if not type(module).__module__.startswith(KNOWN_MODULES):
            raise DeviceError(f"the native backend does not know what {type(module).__name__} computes")
    rotation: Any = model.rotation
    return Weights(
        model.config,
        _floats(model.wte.weight),
        _added_positions(model.wpe),
        (_floats(rotation.cos), _floats(rotation.sin)) if isinstance(rotation, Rotary) else None,
        [_layer(block) for block in model.h],  # type: ignore[arg-type]
        _norm(model.ln_f),
        _matrix(model.lm_head),
    )


def _layer(block: Block) -> LayerWeights:
    attn: Any = block.attn
    mlp: Any = block.mlp
    has_head_norms = not isinstance(attn.q_norm, nn.Identity)
    return LayerWeights(
        qkv=_matrix(attn.c_q, attn.c_k, attn.c_v),
        projection=_matrix(attn.c_proj),
        gate=_matrix(mlp.c_gate) if hasattr(mlp, "c_gate") else None,
        up=_matrix(mlp.c_fc),
        down=_matrix(mlp.c_proj),
        norms=(*_norm(block.ln_1), *_norm(block.ln_2)),
        head_norms=(_floats(attn.q_norm.weight), _floats(attn.k_norm.weight)) if has_head_norms else None,
    )


def _matrix(*layers: Any) -> Matrix:
    """Linear layers of one input as one matrix."""
    biases = [layer.bias.detach().float() for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None
    if isinstance(layers[0], QuantizedLinear):
        integers, scales = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("unpacked", "scales"))
        return Matrix.from_integers(integers, scales, bias, layers[0].bits)
    if isinstance(layers[0], BFloat16Linear):
        return Matrix.from_floats(torch.cat([layer.rounded for layer in layers]), bias)
    return Matrix.from_floats(torch.cat([layer.weight.detach().float() for layer in layers]), bias)


def _norm(norm: nn.Module) -> tuple[Tensor, Tensor | None]:
    parts: Any = norm
    gain = filled_up(parts.weight)
    assert gain is not None
    return gain, filled_up(getattr(parts, "bias", None))


def _added_positions(module: nn.Module) -> Tensor | None:
    match module:
        case LearnedPositions():
            return _floats(module.weight)
        case SinusoidalPositions():
            return _floats(module.table)
    return None


def _floats(x: Tensor) -> Tensor:
    return x.detach().to(torch.float32, copy=True).contiguous()


class NativeBackend:
    """Next-token logits from an engine, and tokens drawn inside it.

    Args:
        make_engine: called at the first use, when it is known how many rows there are.
        model: that the engine runs.
        slide_chunk: see `window_start`; None: `default_chunk`.
        prefill_chunk: most positions computed at a time; None: as many as the engine has room for.
    """

    def __init__(
        self, make_engine: MakeEngine, model: GPT, slide_chunk: int | None = None, prefill_chunk: int | None = None
    ) -> None:
        self.block_size, self.vocab_size = model.config.block_size, model.vocab_size
        self.chunk = min(slide_chunk or default_chunk(self.block_size), self.block_size)
        self._make_engine, self._prefill_chunk = make_engine, prefill_chunk
        self._engine: Engine | None = None
        self._rows: list[int] = []  # of the engine's cache, for each row of ours
        self._held: list[list[int]] = []  # tokens stored in each row of the engine's

    @property
    def cache_bytes(self) -> int:
        return self._engine.cache_bytes if self._engine is not None else 0

    def next_logits(self, contexts: Sequence[Context]) -> Tensor:
        windows = self._windows(contexts)
        engine = self._store_all_but_newest(windows)
        newest = [window[-1] for window in windows]
        positions = [len(window) - 1 for window in windows]
        logits = [
            engine.forward(newest[part], self._rows[part], positions[part], range(len(newest[part])))
            for part in _parts(len(windows), engine.slots)
        ]
        for row, token in zip(self._rows, newest, strict=True):
            self._held[row].append(token)
        return torch.cat(logits)

    def room(self, contexts: Sequence[Context]) -> int:
        """How many tokens `draw` can draw before a window has to move."""
        return self.block_size + 1 - max(len(window) for window in self._windows(contexts))

    def draw(
        self,
        contexts: Sequence[Context],
        uniforms: Tensor,
        params: SamplingParams,
        seen: Tensor | None,
        keep_logits: bool,
    ) -> tuple[list[list[int]], Tensor | None]:
        """Draw several tokens after each context; arguments and result are those of `Engine.generate`.

        Raises:
            NotFiniteError: logits are not finite.
        """
        windows = self._windows(contexts)
        engine = self._store_all_but_newest(windows)
        newest, positions = [window[-1] for window in windows], [len(window) - 1 for window in windows]
        drawn, logits = engine.generate(self._rows, newest, positions, uniforms, params, seen, keep_logits)
        for row, token, more in zip(self._rows, newest, drawn, strict=True):
            self._held[row] += [token, *more[:-1]]
        return drawn, logits

    def verify(
        self,
        contexts: Sequence[Context],
        drafts: Sequence[Sequence[int]],
        uniforms: Sequence[Sequence[float]],
        params: SamplingParams,
        seen: Tensor | None,
        keep_logits: bool,
    ) -> list[tuple[list[int], Tensor | None]]:
        """What would be drawn after each context, and after each of its drafts if the ones before it stand.

        Args:
            contexts: B of them.
            drafts: of each, at most as many as its window has room for.
            uniforms: one for the context and one for each draft.
            params: how to draw.
            seen: (B, V), see `Engine.generate`; spoiled.
            keep_logits: return them too.

        Returns:
            For each context its tokens, one more than drafts, -1 where logits are not finite; and the
            logits (tokens, V) or None.
        """
        windows = self._windows(contexts)
        engine = self._store_all_but_newest(windows)
        tokens: list[int] = []
        rows: list[int] = []
        positions: list[int] = []
        for row, window, draft in zip(self._rows, windows, drafts, strict=True):
            self._check(draft)
            tokens += [window[-1], *draft]
            rows += [row] * (1 + len(draft))
            positions += range(len(window) - 1, len(window) + len(draft))
            self._held[row] += [window[-1], *draft]
        drawn, logits = engine.verify(
            tokens, rows, positions, [u for each in uniforms for u in each], params, seen, keep_logits
        )
        sizes = [1 + len(draft) for draft in drafts]
        ends = list(itertools.accumulate(sizes))
        return [
            (drawn[end - size : end], None if logits is None else logits[end - size : end])
            for size, end in zip(sizes, ends, strict=True)
        ]

    def select(self, rows: Sequence[int]) -> None:
        if self._engine is None:
            return
        wanted = [self._rows[row] for row in rows]
        if len(wanted) > self._engine.rows:
            self._engine = None  # the next call makes a larger one
            return
        free = (row for row in range(self._engine.rows) if row not in wanted)
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

    def _windows(self, contexts: Sequence[Context]) -> list[Context]:
        return [context[window_start(len(context), self.block_size, self.chunk) :] for context in contexts]

    def _store_all_but_newest(self, windows: Sequence[Context]) -> Engine:
        """Compute what is not in the cache yet; windows that are equal are computed once.

        Raises:
            InputError: a token is outside the vocabulary.
        """
        self._check([window[-1] for window in windows])
        if self._engine is None:
            self._engine = self._make_engine(len(windows))
            self._rows = list(range(len(windows)))
            self._held = [[] for _ in windows]
        missing: dict[tuple[int, ...], list[int]] = {}
        for row, window in zip(self._rows, windows, strict=True):
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
        slots: list[tuple[int, int, int]] = []
        for row, window in windows:
            start = _common(self._held[row], window)
            self._check(window[start:])
            slots += [(window[position], row, position) for position in range(start, len(window))]
            self._held[row] = list(window)
        for part in _parts(len(slots), min(self._prefill_chunk or self._engine.slots, self._engine.slots)):
            tokens, cached, positions = (list(column) for column in zip(*slots[part], strict=True))
            self._engine.forward(tokens, cached, positions, wanted=())


def _parts(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _common(held: Sequence[int], window: Sequence[int]) -> int:
    """Length of the beginning that both share."""
    return next((i for i, (a, b) in enumerate(zip(held, window, strict=False)) if a != b), min(len(held), len(window)))
