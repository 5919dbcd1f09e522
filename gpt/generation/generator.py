"""Text from a model: `generate` and `stream`, and `generate_tokens` for ids."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from pydantic import ValidationError

from gpt.config import SamplingParams
from gpt.config.loading import explain
from gpt.data.token_ids import TextOrIds, to_list
from gpt.data.tokenizers import Tokenizer
from gpt.generation.batch import Batch, TextBatch
from gpt.generation.runtime import Runtime, build_runtime
from gpt.model import GPT
from gpt.system.errors import GenerationError


def generate_tokens(
    model: GPT,
    prompt: TextOrIds,
    params: SamplingParams | None = None,
    runtime: Runtime | None = None,
    tokenizer: Tokenizer | None = None,
) -> Iterator[int]:
    """Yield the token ids after a prompt as they are sampled; the end token, if any, is the last.

    Args:
        prompt: at least one token: ids (T,) or (1, T), or a text.
        params: None means the defaults. `stop` is a text, and has no effect on ids. All ids of the
            model may be sampled, even those that a tokenizer does not have, unless
            `params.limited_to` leaves them out.
        runtime: from `build_runtime` with this model; None means the fastest one available.
        tokenizer: encodes the prompt if it is a text.

    Raises:
        GenerationError: the prompt is empty, or the logits are not finite.
        InputError: an id is outside the vocabulary.
    """
    ids = to_list(prompt, tokenizer, "generate_tokens")
    params = params or SamplingParams()
    runtime = runtime or build_runtime(model)
    # The batch gets no tokenizer, since only ids are wanted: its chunks have no text.
    batch = Batch(runtime, [ids], params, [params.seed])
    while batch.active:
        token = batch.step()[0].token  # the only prompt is row 0
        if token is not None:  # a chunk without a token ends a request for no tokens
            yield token.id


def stream(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    runtime: Runtime | None = None,
    draft: GPT | None = None,
    **params: Any,
) -> Iterator[str]:
    """Return an iterator over the text that follows a prompt, in chunks, as it is generated.

    Dropout is off, whatever mode the model is in. Without a `runtime` each call copies the weights
    for the native engine, so that it always uses the present ones.

    Args:
        prompt: the text to continue; after an empty one the text begins as after a line end.
        runtime: from `build_runtime`, with the weights that the model had then. It spares later
            calls the copy of the weights. None means the fastest one available.
        draft: a smaller model with the same tokenizer, which guesses tokens, see `build_runtime`;
            the text is the same. A `runtime` has its own draft, and cannot be combined with one.
        params: fields of `SamplingParams`; NumPy's and torch's scalars, and one string as `stop`,
            are accepted too.

    Raises:
        GenerationError: a parameter is unknown or out of its range, or the prompt is not a text;
            see `TextBatch`.
    """
    # This is no generator function, since errors about the arguments would then be raised only when
    # the text is iterated over.
    runtime = _runtime(model, runtime, draft)
    batch = TextBatch(runtime, tokenizer, [prompt], sampling_params(params))
    return (chunk.text for chunk in batch if chunk.text)


@overload
def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str,
    *,
    runtime: Runtime | None = None,
    draft: GPT | None = None,
    **params: Any,
) -> str: ...
@overload
def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    runtime: Runtime | None = None,
    draft: GPT | None = None,
    **params: Any,
) -> list[str]: ...
def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    runtime: Runtime | None = None,
    draft: GPT | None = None,
    **params: Any,
) -> str | list[str]:
    """Return the text that follows each prompt, without the prompt.

    One prompt gives one text, a list of prompts a list of texts. The prompts are one batch, but
    each has its own generator and gets the text that it would get alone. Arguments and errors are
    those of `stream`.
    """
    if isinstance(prompts, str):
        return "".join(stream(model, tokenizer, prompts, runtime=runtime, draft=draft, **params))
    # `bytes` is a sequence too, but of numbers.
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise GenerationError(
            f"the prompt is a {type(prompts).__name__}, expected a text or a list of texts"
        )
    runtime = _runtime(model, runtime, draft)
    batch = TextBatch(runtime, tokenizer, prompts, sampling_params(params))
    texts = [""] * len(prompts)
    for chunk in batch:
        texts[chunk.row] += chunk.text
    return texts


def _runtime(model: GPT, runtime: Runtime | None, draft: GPT | None) -> Runtime:
    """Return the runtime that was given, or the fastest one available.

    Raises:
        GenerationError: both a runtime and a draft are given.
    """
    if runtime is None:
        return build_runtime(model, draft=draft)
    if draft is not None:
        raise GenerationError(
            "draft has no effect beside runtime; give it to build_runtime(model, draft=...)"
        )
    return runtime


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Return sampling parameters from fields of `SamplingParams`.

    NumPy's and torch's scalars, and one string as `stop`, are accepted too.

    Raises:
        GenerationError: a field is unknown or out of its range; the message lists all problems.
    """
    fields = {name: _plain(value) for name, value in given.items()}
    if isinstance(fields.get("stop"), str):
        # A string is a sequence too, of its characters, each of which would stop the text.
        fields["stop"] = (fields["stop"],)
    try:
        return SamplingParams.model_validate(fields)
    except ValidationError as error:
        # A key is a path in a configuration, such as ("sample", "top_k").
        problems = [f"{key[-1]}: {message}" for key, message in explain(error, "sample")]
        raise GenerationError("; ".join(problems)) from None


def _plain(value: Any) -> Any:
    """Return the number in an array or tensor without dimensions; other values as they are."""
    if getattr(value, "ndim", None) == 0:
        return value.item()
    return value
