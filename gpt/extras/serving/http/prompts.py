"""From the body of a request to prompts for the engine, and the log-probabilities that the protocol shows of them."""

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, cast

import torch

from gpt.config import SampleConfig, SamplingParams
from gpt.config.filters import FILTERS
from gpt.config.sections import SEEDS
from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.extras.serving.http.limits import Limits
from gpt.extras.serving.http.protocol import APIError, CompletionRequest, Ids
from gpt.generation.text import TextStream, check_ids, fit_prompt, token_name
from gpt.generation.tokens import SampledToken, to_sampled_tokens
from gpt.model import GPT
from gpt.system.errors import GenerationError, GPTError, InputError

DEFAULT_MAX_TOKENS = 16
"""The protocol's default."""
SAMPLING = (
    *("stop", "temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("overflow", "long_prompt"),
)
"""Fields that a request shares with `SamplingParams`, besides those of the filters."""


class Prompt(NamedTuple):
    """One prompt of a request.

    Attributes:
        text: its text, without the beginning of a character at its end.
        ids: its tokens in the window, empty for an empty text.
        cropped: those before the window.
        params: one per completion; they differ in the seed.
    """

    text: str
    ids: list[int]
    cropped: list[int]
    params: list[SamplingParams]

    @property
    def values(self) -> int:
        """How many tokens and log-probabilities the completions may have."""
        logprobs = self.params[0].logprobs
        return len(self.params) * self.params[0].max_new_tokens * (1 if logprobs is None else 2 + logprobs)

    async def score(self, model: GPT, executor: Executor) -> list[SampledToken]:
        """Return the prompt's tokens, those in the window with their log-probabilities."""
        loop = asyncio.get_running_loop()
        scored = await loop.run_in_executor(executor, prompt_logprobs, model, self.ids, self.params[0])
        return [*map(SampledToken, self.cropped), *scored]


def read_prompts(
    request: CompletionRequest, limits: Limits, model: GPT, tokenizer: Tokenizer, defaults: SampleConfig
) -> list[Prompt]:
    """Return the prompts of a request, or raise APIError; fields that it leaves out are as in `defaults`."""
    prompt = request.prompt
    is_one = isinstance(prompt, str) or isinstance(prompt[0], int)
    prompts = cast("Sequence[str | Ids]", [prompt] if is_one else prompt)
    limits.check(request, len(prompts))
    params = _params(request, defaults, tokenizer.vocab_size)
    first = secrets.randbelow(SEEDS) if request.seed is None else request.seed
    seeds = [(first + number) % SEEDS for number in range(request.n or 1)]
    with_seeds = [params.model_copy(update={"seed": seed}) for seed in seeds]
    read = []
    for given in prompts:
        try:
            every = _encode(given, tokenizer)
            ids = fit_prompt(every, tokenizer, params, model.config.block_size)
        except GPTError as error:
            too_long = isinstance(error, GenerationError) and bool(given)
            raise APIError(400, f"prompt: {error}", "prompt", "context_length_exceeded" if too_long else None) from None
        text = convert_newlines(given) if isinstance(given, str) else TextStream(tokenizer).begin(given)
        read.append(Prompt(text, ids if every else [], every[: -len(ids)], with_seeds))
    return read


def _params(request: CompletionRequest, defaults: SampleConfig, vocab_size: int) -> SamplingParams:
    given = {name: value for name in (*SAMPLING, *FILTERS) if (value := getattr(request, name)) is not None}
    if isinstance(request.stop, str):
        given["stop"] = (request.stop,)
    given["max_new_tokens"] = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    given["logprobs"] = None if request.logprobs is None else min(request.logprobs, vocab_size)
    given["logit_bias"] = tuple((int(index), bias) for index, bias in (request.logit_bias or {}).items())
    try:
        check_ids((index for index, _ in given["logit_bias"]), vocab_size)
    except InputError as error:
        raise APIError(400, f"logit_bias: {error}", "logit_bias") from None
    return defaults.params(**given).limited_to(vocab_size)


def _encode(prompt: str | Ids, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a prompt; ids stay as they are, also where the tokenizer would choose others for their text."""
    if isinstance(prompt, str):
        return tokenizer.encode(convert_newlines(prompt)).tolist()
    check_ids(prompt, tokenizer.vocab_size)
    return prompt


@torch.inference_mode()
def prompt_logprobs(model: GPT, ids: Sequence[int], params: SamplingParams) -> list[SampledToken]:
    """Return tokens, at most a window, with their log-probabilities, which the first does not have.

    `params` says how many of the most likely tokens are listed beside each, see `to_sampled_tokens`.
    """
    first = [SampledToken(ids[0])]
    if len(ids) == 1:
        return first
    inputs = torch.tensor([ids[:-1]], device=next(model.parameters()).device)
    return first + to_sampled_tokens(ids[1:], model(inputs)[0], params)


class LogprobsStream:
    """Holds back log-probabilities until the text they belong to is shown.

    A token that begins where the shown text ends, such as one of a stop string, is never shown.

    Args:
        before: ids of the text before, which is not shown.
    """

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = ()) -> None:
        self._tokenizer, self._text = tokenizer, TextStream(tokenizer)
        self._text.begin(before)
        self._held: deque[tuple[SampledToken, int]] = deque()
        self._length = 0

    def feed(self, tokens: Iterable[SampledToken]) -> None:
        for token in tokens:
            self._held.append((token, self._length))
            self._length += len(self._text.feed(token.id))

    def take(self, length: int) -> dict[str, list[Any]]:
        """Return what belongs to the first `length` characters and was not returned before, see `Logprobs`."""
        body: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        while self._held and self._held[0][1] < length:
            token, offset = self._held.popleft()
            values = (self._name(token.id), token.logprob, self._top(token), offset)
            for column, value in zip(body.values(), values, strict=True):
                column.append(value)
        return body

    def _top(self, token: SampledToken) -> dict[str, float] | None:
        """Return the most likely tokens, and the one that was sampled if it is not among them."""
        if token.logprob is None:
            return None
        return {self._name(index): logprob for index, logprob in (*token.top, (token.id, token.logprob))}

    def _name(self, index: int) -> str:
        return token_name(self._tokenizer, index)
