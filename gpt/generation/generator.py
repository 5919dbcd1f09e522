"""Text from a model: tokens first, one at a time; text and batches are wrappers over that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from gpt.cache import KV_DTYPES
from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.errors import GenerationError
from gpt.generation.backends import Backend, CachedBackend, UncachedBackend
from gpt.generation.decoder import BatchDecoder, Drawn
from gpt.generation.prompts import encode_prompt
from gpt.generation.text import TextStream
from gpt.model import GPT

Finish = Literal["length", "stop", "end", "window"]
"""Why a text ended: `max_new_tokens`, a stop text, the end token, or the edge of the window."""


BACKENDS = {"auto": CachedBackend, "eager": CachedBackend}
"""Who computes with a cache: `eager` is PyTorch, operator by operator; `auto` the quickest there is."""


@dataclass(frozen=True)
class DecodeOptions:
    """How logits are computed; none of it changes what is drawn, but for the rounding of a smaller cache.

    Attributes:
        backend: one of `BACKENDS`.
        cache: keep keys and values; False computes the whole window for every token.
        kv_dtype: what the cache holds: fp32, bf16, fp16 or int8.
        prefill_chunk: most positions of a prompt computed at a time; None: all.
    """

    backend: str = "auto"
    cache: bool = True
    kv_dtype: str = "fp32"
    prefill_chunk: int | None = None

    def __post_init__(self) -> None:
        """Raise GenerationError where a value is not one of those above."""
        for name, value, known in (("backend", self.backend, BACKENDS), ("kv_dtype", self.kv_dtype, KV_DTYPES)):
            if value not in known:
                raise GenerationError(f"{name} {value!r}: expected one of {', '.join(known)}")
        if self.prefill_chunk is not None and self.prefill_chunk < 1:
            raise GenerationError(f"prefill_chunk is {self.prefill_chunk}, expected at least 1")


@dataclass(frozen=True)
class Piece:
    """What one drawn token adds to a row.

    Attributes:
        row: number of the prompt.
        text: what may be shown now; empty where it is held back.
        drawn: the token; None where `max_new_tokens` is 0.
        finish: why the row ends with this piece; None while it goes on.
    """

    row: int
    text: str
    drawn: Drawn | None
    finish: Finish | None


@dataclass
class Completion:
    """A finished text.

    Attributes:
        prompt: as it was given.
        text: what follows the prompt.
        seed: of its generator.
        finish: why it ended.
        drawn: its tokens, a stop text's included.
    """

    prompt: str
    text: str
    seed: int
    finish: Finish = "length"
    drawn: list[Drawn] = field(default_factory=list)


def build_backend(model: GPT, params: SamplingParams, options: DecodeOptions) -> Backend:
    """The backend that some options name."""
    if options.cache:
        return BACKENDS[options.backend](model, params.slide_chunk, options.kv_dtype, options.prefill_chunk)
    return UncachedBackend(model, params.slide_chunk)


def generate_tokens(
    model: GPT, prompt: Sequence[int], params: SamplingParams, options: DecodeOptions | None = None
) -> Iterator[int]:
    """Yield token ids after a prompt, each as soon as it is drawn; the end token, if any, is the last.

    Args:
        model: in eval mode.
        prompt: at least one id.
        params: `stop` is text and has no effect here.
        options: how to compute; None: with a cache.

    Raises:
        GenerationError: the prompt is empty, or the logits are not finite.
        InputError: an id is outside the vocabulary.
    """
    backend = build_backend(model, params, options or DecodeOptions())
    decoder = BatchDecoder(backend, [prompt], params, [params.seed])
    for count in range(1, params.max_new_tokens + 1):
        token = decoder.step()[0].token
        yield token
        if token == params.end_id or _at_edge(len(prompt) + count, model, params):
            return


def stream_pieces(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    params: SamplingParams,
    seeds: Sequence[int] | None = None,
    backend: Backend | None = None,
) -> Iterator[Piece]:
    """Yield the texts of a whole batch, piece by piece.

    Args:
        model: in eval mode.
        tokenizer: the one the model was trained with.
        prompts: of any lengths up to `block_size`.
        params: of all of them.
        seeds: one each; None: `params.seed` for all.
        backend: a fresh one; None: with a cache.

    Raises:
        DataError: a prompt has characters outside the vocabulary; raised by the call, as is the next.
        GenerationError: a prompt is empty or too long and `params` refuses that; later: the logits are
            not finite.
    """
    ids = [encode_prompt(tokenizer, prompt, params, model.config.block_size) for prompt in prompts]
    seeds = [params.seed] * len(ids) if seeds is None else seeds
    if len(seeds) != len(ids):
        raise GenerationError(f"{len(seeds)} seeds for {len(ids)} prompts; give one each")
    backend = backend or build_backend(model, params, DecodeOptions())
    decoder = BatchDecoder(backend, ids, params, seeds)
    return _run(model, tokenizer, decoder, [len(row) for row in ids], params)


def _run(
    model: GPT, tokenizer: Tokenizer, decoder: BatchDecoder, lengths: list[int], params: SamplingParams
) -> Iterator[Piece]:
    texts = [TextStream(tokenizer, params.stop) for _ in lengths]
    if params.max_new_tokens == 0:
        yield from (Piece(row, "", None, "length") for row in range(len(lengths)))
        return
    count = 0
    while decoder.active:
        count += 1
        done = set()
        for row, drawn in decoder.step().items():
            is_end = drawn.token == params.end_id
            text = "" if is_end else texts[row].feed(drawn.token)
            finish: Finish | None = None
            if is_end:
                finish = "end"
            elif texts[row].stopped:
                finish = "stop"
            elif count == params.max_new_tokens:
                finish = "length"
            elif _at_edge(lengths[row] + count, model, params):
                finish = "window"
            if finish is not None:
                done.add(row)
                text += texts[row].flush()
            yield Piece(row, text, drawn, finish)
        decoder.finish(done)


def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    params: SamplingParams,
    seeds: Sequence[int] | None = None,
    backend: Backend | None = None,
) -> list[Completion]:
    """Finished texts of a batch, with their tokens; see `stream_pieces`."""
    seeds = seeds or [params.seed] * len(prompts)
    completions = [Completion(prompt, "", seed) for prompt, seed in zip(prompts, seeds, strict=True)]
    for piece in stream_pieces(model, tokenizer, prompts, params, seeds, backend):
        completion = completions[piece.row]
        completion.text += piece.text
        completion.finish = piece.finish or completion.finish
        if piece.drawn is not None:
            completion.drawn.append(piece.drawn)
    return completions


def stream(model: GPT, tokenizer: Tokenizer, prompt: str, **params: Any) -> Iterator[str]:
    """Yield the text that follows a prompt, in pieces, as it is generated.

    Args:
        model: in eval mode.
        tokenizer: the one the model was trained with.
        prompt: may be empty: it then starts after a line end.
        params: fields of `SamplingParams`.

    Raises:
        pydantic.ValidationError: a parameter is out of its range.
        GPTError: see `stream_pieces`.
    """
    return stream_text(model, tokenizer, prompt, SamplingParams(**params))


def stream_text(model: GPT, tokenizer: Tokenizer, prompt: str, params: SamplingParams) -> Iterator[str]:
    """`stream` with the parameters in one object."""
    return (piece.text for piece in stream_pieces(model, tokenizer, [prompt], params) if piece.text)


@overload
def generate(model: GPT, tokenizer: Tokenizer, prompts: str, **params: Any) -> str: ...
@overload
def generate(model: GPT, tokenizer: Tokenizer, prompts: Sequence[str], **params: Any) -> list[str]: ...
def generate(model: GPT, tokenizer: Tokenizer, prompts: str | Sequence[str], **params: Any) -> str | list[str]:
    """The text that follows each prompt, without the prompt; one text for one prompt, a list for a list.

    The prompts are decoded together, and each has its own generator: its text is what it would be
    alone. Arguments and errors are those of `stream`.
    """
    if isinstance(prompts, str):
        return "".join(stream(model, tokenizer, prompts, **params))
    return [completion.text for completion in complete(model, tokenizer, prompts, SamplingParams(**params))]


def _at_edge(length: int, model: GPT, params: SamplingParams) -> bool:
    """Whether a text of `length` tokens, which no longer fits the window, is to end."""
    return params.overflow == "stop" and length > model.config.block_size
