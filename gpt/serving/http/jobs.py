"""Translate the body of a request into jobs for the engine."""

import secrets
from collections.abc import Sequence
from typing import NamedTuple, cast

from pydantic import ValidationError

from gpt.config import SamplingParams
from gpt.config.filter_fields import all_filters
from gpt.config.sections import SEEDS
from gpt.data.tokenizers import Tokenizer
from gpt.errors import DataError, GenerationError
from gpt.generation.text import TextStream, fit_prompt
from gpt.model import GPT
from gpt.serving.http.errors import APIError
from gpt.serving.http.limits import Limits
from gpt.serving.http.protocol import CompletionRequest, Ids, Prompt

DEFAULT_MAX_TOKENS = 16
"""Of the protocol."""
SAMPLING = ("stop", "temperature", "repetition_penalty", "overflow", "long_prompt")
"""Fields that a request shares with `SamplingParams`, besides those of the filters."""


class Job(NamedTuple):
    """One prompt.

    Attributes:
        prompt: its text, without the beginning of a character at its end.
        ids: its tokens in the window, empty for an empty text.
        cropped: those before the window.
        params: one per completion; they differ in the seed.
    """

    prompt: str
    ids: list[int]
    cropped: list[int]
    params: list[SamplingParams]

    @property
    def values(self) -> int:
        """Return how many tokens and log-probabilities the completions may have."""
        logprobs = self.params[0].logprobs
        return len(self.params) * self.params[0].max_new_tokens * (1 if logprobs is None else 2 + logprobs)


def read_jobs(
    request: CompletionRequest, limits: Limits, model: GPT, tokenizer: Tokenizer, defaults: SamplingParams
) -> list[Job]:
    """Return what a request asks for, one job per prompt.

    Args:
        request: as it came.
        limits: the server's limits.
        model: the model to use.
        tokenizer: the model's tokenizer.
        defaults: values for fields that the request leaves out.

    Raises:
        APIError: the request cannot be answered.
    """
    prompts = _prompts(request.prompt)
    limits.check(request, len(prompts))
    if (request.logprobs or 0) > tokenizer.vocab_size:
        raise APIError(
            400, f"logprobs: {request.logprobs}, but the vocabulary has {tokenizer.vocab_size} tokens", "logprobs"
        )
    params = _params(request, defaults).limited_to(tokenizer.vocab_size)
    seeds = _seeds(request)
    jobs = []
    for given in prompts:
        try:
            every = _encode(given, tokenizer)
            ids = fit_prompt(every, tokenizer, params, model.config.block_size)
        except (DataError, GenerationError) as error:
            too_long = isinstance(error, GenerationError) and bool(given)
            raise APIError(400, f"prompt: {error}", "prompt", "context_length_exceeded" if too_long else None) from None
        prompt = given if isinstance(given, str) else TextStream(tokenizer).begin(given)
        with_seeds = [params.model_copy(update={"seed": seed}) for seed in seeds]
        jobs.append(Job(prompt, ids if every else [], every[: -len(ids)], with_seeds))
    return jobs


def _params(request: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Return the sampling parameters of a request, which its completions share but for the seed."""
    given = {name: value for name in (*SAMPLING, *all_filters()) if (value := getattr(request, name)) is not None}
    if isinstance(request.stop, str):
        given["stop"] = (request.stop,)
    given["max_new_tokens"] = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    given["logprobs"] = request.logprobs
    try:
        return SamplingParams.model_validate({**defaults.model_dump(), **given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = str(first["loc"][0])
        raise APIError(400, f"{param}: {first['msg']}", param) from None


def _seeds(request: CompletionRequest) -> list[int]:
    """Return one seed per completion of a prompt.

    Raises:
        APIError: the last one is out of range.
    """
    count = request.n or 1
    most = SEEDS - count
    first = secrets.randbelow(most + 1) if request.seed is None else request.seed
    if first > most:
        raise APIError(400, f"seed: completion i has this + i; for n = {count} expected at most {most}", "seed")
    return list(range(first, first + count))


def _prompts(prompt: Prompt) -> Sequence[str | Ids]:
    """Return the prompts of a request as a list."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [prompt]
    return cast("Sequence[str | Ids]", prompt)


def _encode(prompt: str | Ids, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a prompt; ids stay as they are, also where the tokenizer would choose others for their text."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt).tolist()
    wrong = next((index for index in prompt if index >= tokenizer.vocab_size), None)
    if wrong is not None:
        raise APIError(400, f"prompt: token id {wrong} is outside the vocabulary of {tokenizer.vocab_size}", "prompt")
    return prompt
