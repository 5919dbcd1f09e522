"""Text from a model: tokens first, one at a time; text and batches are wrappers over that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, overload

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.errors import GenerationError
from gpt.generation.decoder import SampledToken
from gpt.generation.prompts import encode_prompt
from gpt.generation.runtime import Runtime, build_runtime
from gpt.generation.text_stream import TextStream
from gpt.model import GPT

Finish = Literal["length", "stop", "end", "window"]
"""Why a text ended: `max_new_tokens`, a stop text, the end token, or the edge of the window."""


class Piece(NamedTuple):
    """What one sampled token adds to a row.

    Attributes:
        row: number of the prompt.
        text: what may be shown now; empty where it is held back.
        sampled: the token; None where `max_new_tokens` is 0.
        finish: why the row ends with this piece; None while it goes on.
    """

    row: int
    text: str
    sampled: SampledToken | None
    finish: Finish | None


@dataclass
class Completion:
    """A finished text.

    Attributes:
        prompt: as it was given.
        text: what follows the prompt.
        seed: of its generator.
        finish: why it ended.
        tokens: its tokens, a stop text's included.
    """

    prompt: str
    text: str
    seed: int
    finish: Finish = "length"
    tokens: list[SampledToken] = field(default_factory=list)


def generate_tokens(
    model: GPT, prompt: Sequence[int], params: SamplingParams, runtime: Runtime | None = None
) -> Iterator[int]:
    """Yield token ids after a prompt, each as soon as it is sampled; the end token, if any, is the last.

    Args:
        model: in eval mode.
        prompt: at least one id.
        params: `stop` is text and has no effect here.
        runtime: of this model; None: the quickest there is.

    Raises:
        GenerationError: the prompt is empty, or the logits are not finite.
        InputError: an id is outside the vocabulary.
    """
    decoder = (runtime or build_runtime(model)).decoder([prompt], params, [params.seed])
    for count in range(1, params.max_new_tokens + 1):
        token = decoder.step()[0].id
        yield token
        if token == params.end_id or _at_edge(len(prompt) + count, model.config.block_size, params):
            return


class TextBatch:
    """The texts of several prompts, sampled together; iterating, once, gives their pieces as they come.

    Args:
        runtime: of the model.
        tokenizer: the one the model was trained with.
        prompts: of any lengths up to `block_size`.
        params: of all of them.
        seeds: one each; None: `params.seed` for all.

    Raises:
        DataError: a prompt has characters outside the vocabulary.
        GenerationError: a prompt is empty or too long and `params` refuses that; in an iteration: the
            logits are not finite.
    """

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        params: SamplingParams,
        seeds: Sequence[int] | None = None,
    ) -> None:
        ids = [encode_prompt(tokenizer, prompt, params, runtime.model.config.block_size) for prompt in prompts]
        seeds = [params.seed] * len(ids) if seeds is None else seeds
        if len(seeds) != len(ids):
            raise GenerationError(f"{len(seeds)} seeds for {len(ids)} prompts; give one each")
        self._lengths, self._params, self._block_size = (
            [len(row) for row in ids],
            params,
            runtime.model.config.block_size,
        )
        self._texts = [TextStream(tokenizer, params.stop) for _ in ids]
        self._decoder = runtime.decoder(ids, params, seeds)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values held now."""
        return self._decoder.cache_bytes

    @property
    def acceptance(self) -> float | None:
        """Share of guessed tokens that stood; None where none were guessed."""
        return self._decoder.acceptance

    def __iter__(self) -> Iterator[Piece]:
        if self._params.max_new_tokens == 0:
            yield from (Piece(row, "", None, "length") for row in range(len(self._texts)))
            return
        count = 0
        while self._decoder.active:
            count += 1
            done = set()
            for row, sampled in self._decoder.step().items():
                piece = self._piece(row, sampled, count)
                if piece.finish is not None:
                    done.add(row)
                yield piece
            self._decoder.finish(done)

    def _piece(self, row: int, sampled: SampledToken, count: int) -> Piece:
        """What token number `count` of a row adds."""
        params, text = self._params, self._texts[row]
        is_end = sampled.id == params.end_id
        shown = "" if is_end else text.feed(sampled.id)
        finish: Finish | None = None
        if is_end:
            finish = "end"
        elif text.stopped:
            finish = "stop"
        elif count == params.max_new_tokens:
            finish = "length"
        elif _at_edge(self._lengths[row] + count, self._block_size, params):
            finish = "window"
        return Piece(row, shown if finish is None else shown + text.flush(), sampled, finish)


def stream_pieces(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    params: SamplingParams,
    seeds: Sequence[int] | None = None,
    runtime: Runtime | None = None,
) -> Iterator[Piece]:
    """The pieces of a `TextBatch`, whose arguments and errors these are; what is wrong with a prompt is raised at once.

    Args:
        model: in eval mode.
        tokenizer: see there.
        prompts: see there.
        params: see there.
        seeds: see there.
        runtime: of this model; None: the quickest there is.
    """
    return iter(TextBatch(runtime or build_runtime(model), tokenizer, prompts, params, seeds))


def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    params: SamplingParams,
    seeds: Sequence[int] | None = None,
    runtime: Runtime | None = None,
) -> list[Completion]:
    """Finished texts of a batch, with their tokens; see `stream_pieces`."""
    seeds = [params.seed] * len(prompts) if seeds is None else seeds
    pieces = stream_pieces(model, tokenizer, prompts, params, seeds, runtime)
    completions = [Completion(prompt, "", seed) for prompt, seed in zip(prompts, seeds, strict=True)]
    for piece in pieces:
        completion = completions[piece.row]
        completion.text += piece.text
        completion.finish = piece.finish or completion.finish
        if piece.sampled is not None:
            completion.tokens.append(piece.sampled)
    return completions


def stream(
    model: GPT, tokenizer: Tokenizer, prompt: str, *, runtime: Runtime | None = None, **params: Any
) -> Iterator[str]:
    """Yield the text that follows a prompt, in pieces, as it is generated.

    Args:
        model: in eval mode.
        tokenizer: the one the model was trained with.
        prompt: may be empty: it then starts after a line end.
        runtime: of this model, from `build_runtime`: keep one for many calls; None: the quickest there is, made anew.
        params: fields of `SamplingParams`.

    Raises:
        pydantic.ValidationError: a parameter is out of its range.
        GPTError: see `stream_pieces`.
    """
    return stream_text(model, tokenizer, prompt, SamplingParams(**params), runtime)


def stream_text(
    model: GPT, tokenizer: Tokenizer, prompt: str, params: SamplingParams, runtime: Runtime | None = None
) -> Iterator[str]:
    """`stream` with the parameters in one object."""
    pieces = stream_pieces(model, tokenizer, [prompt], params, runtime=runtime)
    return (piece.text for piece in pieces if piece.text)


@overload
def generate(
    model: GPT, tokenizer: Tokenizer, prompts: str, *, runtime: Runtime | None = None, **params: Any
) -> str: ...
@overload
def generate(
    model: GPT, tokenizer: Tokenizer, prompts: Sequence[str], *, runtime: Runtime | None = None, **params: Any
) -> list[str]: ...
def generate(
    model: GPT, tokenizer: Tokenizer, prompts: str | Sequence[str], *, runtime: Runtime | None = None, **params: Any
) -> str | list[str]:
    """The text that follows each prompt, without the prompt; one text for one prompt, a list for a list.

    The prompts are decoded together, and each has its own generator: its text is what it would be
    alone. Arguments and errors are those of `stream`.
    """
    if isinstance(prompts, str):
        return "".join(stream(model, tokenizer, prompts, runtime=runtime, **params))
    return [
        completion.text for completion in complete(model, tokenizer, prompts, SamplingParams(**params), runtime=runtime)
    ]


def _at_edge(length: int, block_size: int, params: SamplingParams) -> bool:
    """Whether a text of `length` tokens, which no longer fits the window, is to end."""
    return params.overflow == "stop" and length > block_size
