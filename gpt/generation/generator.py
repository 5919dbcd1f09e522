"""Text from a model: a batch of prompts in, chunks of text out; `generate` and `stream` are wrappers over that."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from pydantic import ValidationError

from gpt.config import SamplingParams
from gpt.config.sections import SEEDS
from gpt.data.token_ids import TextOrIds, to_list
from gpt.data.tokenizers import Tokenizer
from gpt.generation.request import Request, TextChunk
from gpt.generation.speculative import Speculation
from gpt.generation.text import check_ids, encode_prompt
from gpt.generation.tokens import TokenIds
from gpt.system.errors import GenerationError

if TYPE_CHECKING:
    from gpt.generation.runtime import Runtime
    from gpt.model import GPT


def generate_tokens(
    model: "GPT",
    prompt: TextOrIds,
    params: SamplingParams | None = None,
    runtime: "Runtime | None" = None,
    tokenizer: Tokenizer | None = None,
) -> Iterator[int]:
    """Yield the token ids after a prompt as they are sampled; the end token, if any, is the last.

    Args:
        prompt: at least one token: ids (T,) or (1, T), or a text.
        params: None: the defaults; `stop` is text and has no effect here. All ids of the model may be sampled, also
            those that a tokenizer does not have: `params.limited_to` leaves them out.
        runtime: prepared from this model; None: the fastest available.

    Raises:
        GenerationError: the prompt is empty, or the logits are not finite.
        InputError: an id is outside the vocabulary.
    """
    ids, params = to_list(prompt, tokenizer, "generate_tokens"), params or SamplingParams()
    batch = Batch(runtime or _fastest(model), [ids], params, [params.seed])
    while batch.active:
        token = batch.step()[0].token
        if token is not None:
            yield token.id


class Batch:
    """Sequences that are computed side by side: in each step the `active` rows, which have not ended, get a token.

    Args:
        prompts: token ids, at least one each.
        seeds: one each, in the place of that of `params`.
        tokenizer: the one the model was trained with; None: ids are wanted, and no text.

    Raises:
        GenerationError: a prompt is empty.
        InputError: an id is outside the vocabulary.
    """

    def __init__(
        self,
        runtime: "Runtime",
        prompts: Sequence[TokenIds],
        params: SamplingParams,
        seeds: Sequence[int],
        tokenizer: Tokenizer | None = None,
    ) -> None:
        for ids in prompts:
            check_ids(ids, runtime.model.vocab_size)
        self.active = list(range(len(prompts)))
        self._queues: list[deque[TextChunk]] = [deque() for _ in prompts]
        self._engine = runtime.engine(tokenizer, max(1, len(prompts)))
        self._requests = [
            Request(list(ids), params.model_copy(update={"seed": seed}), row=row)
            for row, (ids, seed) in enumerate(zip(prompts, seeds, strict=True))
        ]
        for request in self._requests:
            for _, chunks in self._engine.add(request):
                self._queues[request.row] += chunks

    @property
    def speculation(self) -> Speculation | None:
        return self._engine.speculation

    def step(self) -> dict[int, TextChunk]:
        """Return the next chunk of every request that has not ended, by its row.

        Raises:
            GenerationError: the model's logits are not finite.
        """
        while not all(self._queues[row] for row in self.active):
            for request, new in self._engine.step():
                self._queues[request.row] += new
        chunks = {row: self._queues[row].popleft() for row in self.active}
        ended = {row for row, chunk in chunks.items() if chunk.finish is not None}
        if ended:
            self.active = [row for row in self.active if row not in ended]
        for row in ended:
            if (error := self._requests[row].error) is not None:
                self.active = []
                raise error
        return chunks


class TextBatch(Batch):
    """Texts after several prompts, generated as one batch; iterating, once, yields their chunks as they come.

    Args:
        prompts: any lengths up to `block_size`.
        seeds: one each; None: `params.seed` for all.

    Raises:
        DataError: a prompt has characters outside the vocabulary.
        GenerationError: a prompt is too long and `params` refuses that, or a seed is out of its range; in an
            iteration: the logits are not finite.
    """

    def __init__(
        self,
        runtime: "Runtime",
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        params: SamplingParams,
        seeds: Sequence[int] | None = None,
    ) -> None:
        params = params.limited_to(tokenizer.vocab_size)
        ids = [encode_prompt(tokenizer, prompt, params, runtime.model.config.block_size) for prompt in prompts]
        seeds = [params.seed] * len(ids) if seeds is None else seeds
        if len(seeds) != len(ids):
            raise GenerationError(f"{len(seeds)} seeds for {len(ids)} prompts; give one each")
        for seed in seeds:
            if not 0 <= seed < SEEDS:
                raise GenerationError(f"seed {seed}: expected at least 0 and less than 2^32")
        super().__init__(runtime, ids, params, seeds, tokenizer)

    def __iter__(self) -> Iterator[TextChunk]:
        while self.active:
            yield from self.step().values()


def stream(
    model: "GPT", tokenizer: Tokenizer, prompt: str, *, runtime: "Runtime | None" = None, **params: Any
) -> Iterator[str]:
    """Return an iterator over the text that follows a prompt, in chunks, as it is generated.

    Dropout is off, whatever mode the model is in. Without a `runtime` the native engine's copy of the weights is kept
    from call to call, and made anew when they have changed; to be sure of that, each call reads all weights once.

    Args:
        prompt: may be empty: it then starts after a line end.
        runtime: from `build_runtime`, with the model's weights of that moment, which saves the check in each of many
            calls. None: the fastest available.
        params: fields of `SamplingParams`; NumPy's and torch's scalars, and one string as `stop`, are accepted too.

    Raises:
        GenerationError: a parameter is unknown or out of its range, or the prompt is not a text; see `TextBatch`.
    """
    batch = TextBatch(runtime or _fastest(model), tokenizer, [prompt], sampling_params(params))
    return (chunk.text for chunk in batch if chunk.text)


@overload
def generate(
    model: "GPT", tokenizer: Tokenizer, prompts: str, *, runtime: "Runtime | None" = None, **params: Any
) -> str: ...
@overload
def generate(
    model: "GPT", tokenizer: Tokenizer, prompts: Sequence[str], *, runtime: "Runtime | None" = None, **params: Any
) -> list[str]: ...
def generate(
    model: "GPT", tokenizer: Tokenizer, prompts: str | Sequence[str], *, runtime: "Runtime | None" = None, **params: Any
) -> str | list[str]:
    """Return the text that follows each prompt, without the prompt; one text for one prompt, a list for a list.

    The prompts are one batch, but each has its own generator and gets the text that it would get alone. Arguments and
    errors are those of `stream`.
    """
    if isinstance(prompts, str):
        return "".join(stream(model, tokenizer, prompts, runtime=runtime, **params))
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise GenerationError(f"the prompt is a {type(prompts).__name__}, expected a text or a list of texts")
    texts = [""] * len(prompts)
    for chunk in TextBatch(runtime or _fastest(model), tokenizer, prompts, sampling_params(params)):
        texts[chunk.row] += chunk.text
    return texts


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Return sampling parameters from fields of `SamplingParams`; one string as `stop` is accepted too.

    Raises:
        GenerationError: one is unknown or out of its range; the message has all problems.
    """
    given = {name: value.item() if getattr(value, "ndim", None) == 0 else value for name, value in given.items()}
    given = {**given, "stop": (given["stop"],)} if isinstance(given.get("stop"), str) else given
    try:
        return SamplingParams.model_validate(given)
    except ValidationError as error:
        from gpt.config.loading import explain  # here, since only this reads what a user may have misspelled

        problems = (f"{key[-1]}: {message}" for key, message in explain(error, "sample"))
        raise GenerationError("; ".join(problems)) from None


def _fastest(model: "GPT") -> "Runtime":
    from gpt.generation.runtime import build_runtime  # here, since who brings a runtime needs no other

    return build_runtime(model)
