"""Text from a model: tokens first, one at a time; text and batches are wrappers over that."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.errors import DataError, GenerationError
from gpt.generation.sampling import draw, next_token_probabilities
from gpt.generation.text import TextStream
from gpt.model import GPT

FIRST_TEXT = "\n"
"""Where an empty prompt starts: after a line end, or, where the vocabulary has none, after id 0."""


@torch.inference_mode()
def generate_tokens(model: GPT, prompt: Sequence[int], params: SamplingParams) -> Iterator[int]:
    """Yield token ids after a prompt, each as soon as it is drawn.

    Past `block_size` the model sees the last `block_size` tokens.

    Args:
        model: in eval mode.
        prompt: at least one id.
        params: `stop` is text and has no effect here.

    Raises:
        GenerationError: the prompt is empty, or the logits are not finite.
        InputError: an id is outside the vocabulary.
    """
    if len(prompt) == 0:
        raise GenerationError("a prompt needs at least one token")
    device = next(model.parameters()).device
    window = model.config.block_size
    idx = torch.tensor([list(prompt)], dtype=torch.long, device=device)  # (1, T)
    generator = torch.Generator().manual_seed(params.seed)
    for _ in range(params.max_new_tokens):
        logits = model(idx[:, -window:])[:, -1]  # (1, V)
        _check_finite(logits, idx.size(1))
        uniform = torch.rand(1, generator=generator)
        token = draw(next_token_probabilities(logits, params), uniform)
        yield int(token)
        idx = torch.cat((idx, token.unsqueeze(1)), dim=1)


def stream(model: GPT, tokenizer: Tokenizer, prompt: str, **params: Any) -> Iterator[str]:
    """Yield the text that follows a prompt, in pieces, as it is generated.

    Args:
        model: in eval mode.
        tokenizer: the one the model was trained with.
        prompt: may be empty: see `FIRST_TEXT`.
        params: fields of `SamplingParams`.

    Raises:
        DataError: the prompt has characters outside the vocabulary; raised by the call, as is the next.
        pydantic.ValidationError: a parameter is out of its range.
        GenerationError: see `generate_tokens`.
    """
    return stream_text(model, tokenizer, prompt, SamplingParams(**params))


def stream_text(model: GPT, tokenizer: Tokenizer, prompt: str, params: SamplingParams) -> Iterator[str]:
    """`stream` with the parameters in one object."""
    return _pieces(generate_tokens(model, encode_prompt(tokenizer, prompt), params), TextStream(tokenizer, params.stop))


def _pieces(tokens: Iterator[int], text: TextStream) -> Iterator[str]:
    for index in tokens:
        piece = text.feed(index)
        if piece:
            yield piece
        if text.stopped:
            return
    rest = text.flush()
    if rest:
        yield rest


@overload
def generate(model: GPT, tokenizer: Tokenizer, prompts: str, **params: Any) -> str: ...
@overload
def generate(model: GPT, tokenizer: Tokenizer, prompts: Sequence[str], **params: Any) -> list[str]: ...
def generate(model: GPT, tokenizer: Tokenizer, prompts: str | Sequence[str], **params: Any) -> str | list[str]:
    """The text that follows each prompt, without the prompt; one text for one prompt, a list for a list.

    Every prompt is its own request with its own generator: its text is what it would be alone.
    Arguments and errors are those of `stream`.
    """
    if isinstance(prompts, str):
        return "".join(stream(model, tokenizer, prompts, **params))
    return ["".join(stream(model, tokenizer, prompt, **params)) for prompt in prompts]


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Ids of a prompt; an empty one starts after `FIRST_TEXT`.

    Raises:
        DataError: characters outside the vocabulary.
    """
    ids = tokenizer.encode(prompt).tolist()
    if ids:
        return [int(index) for index in ids]
    try:
        return [int(tokenizer.encode(FIRST_TEXT)[0])]
    except DataError:
        return [0]


def _check_finite(logits: Tensor, position: int) -> None:
    if not torch.isfinite(logits).all():
        raise GenerationError(f"the model's logits at position {position - 1} are not finite; its weights are damaged")
