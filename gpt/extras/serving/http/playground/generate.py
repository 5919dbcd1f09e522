"""`/api/generate`: a text as the serving engine writes it, with the alternatives to each of its tokens."""

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Annotated, Any

import torch
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field
from torch import Tensor

from gpt.checkpoint import Loaded
from gpt.config import SamplingParams
from gpt.config.sections import Seed, filter_fields
from gpt.data.tokenizers import Tokenizer
from gpt.extras.inspection.views.tokens import labels_of, most_likely
from gpt.extras.serving.http.completions import event, stream
from gpt.extras.serving.http.prompts import Prompt, length_of, read_prompts
from gpt.extras.serving.http.protocol import CompletionRequest, Ids
from gpt.extras.serving.http.responses import Choice, Response, Services, until_answered
from gpt.generation.sampling import next_token_probabilities
from gpt.generation.text import TextStream, fit_prompt
from gpt.generation.tokens import SampledToken

FIXED: dict[str, Any] = {"n": 1, "stop": [], "repetition_penalty": 1.0, "overflow": "slide", "long_prompt": "crop"}
"""What the page does not let its reader choose, so that nothing but the fields of a request decides about the text."""
MAX_LOGPROBS = 4096
"""Tokens from which alternatives are found; what a larger vocabulary has beyond them counts as impossible."""
ALTERNATIVES = 10
"""Tokens that are listed, where a request does not ask for more."""
MAX_FED = 64
"""Tokens that are described at a time; until then, each holds the log-probabilities of the whole vocabulary."""


class GenerateRequest(filter_fields()):  # type: ignore[misc]
    """A text to continue. The same request to /v1/completions has the same text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: str | Ids = Field(description="A text, or its token ids.")
    model: str | None = Field(None, description="One of /v1/models; left out: the server's first.")
    max_tokens: int = Field(300, ge=0, description="Tokens to generate.")
    temperature: float = Field(1.0, ge=0, le=2, description="0: always the most likely token.")
    seed: Seed = Field(0, description="Same seed, same text.")
    known: int = Field(0, ge=0, description="Tokens at the beginning of the prompt that are not to be described.")
    alternatives: int = Field(ALTERNATIVES, ge=1, le=MAX_LOGPROBS, description="Most likely tokens in each list.")


def add_generate(app: FastAPI, services: Services) -> None:
    async def create(
        body: GenerateRequest, cleanup: Annotated[AsyncExitStack, Depends(until_answered)]
    ) -> StreamingResponse:
        """Continue a prompt, and send each token with the most likely ones in its place.

        Every event is a list of `tokens`, each with `id`, `label`, `text`, `probability` and `chance`, which are before
        and after the sampling parameters, and the most likely tokens `own` and `sampled`, before and after them.
        The tokens of the prompt come first.
        """
        served = await cleanup.enter_async_context(services.models.use(body.model))
        model, tokenizer = served.loaded.model, served.loaded.tokenizer
        request = CompletionRequest(**body.model_dump(exclude={"known", "alternatives"}), **FIXED)
        defaults = served.loaded.config.sample
        reading = (request, services.limits, model, tokenizer, defaults)
        (prompt,) = await services.worker.run(length_of(body.prompt), read_prompts, *reading)
        params = prompt.params[0].model_copy(update={"logprobs": min(model.vocab_size, MAX_LOGPROBS)})
        given = len(prompt.cropped) + len(prompt.ids)
        described = max(0, given - body.known) + params.max_new_tokens
        values = given + described * (2 + 2 * body.alternatives)
        response = cleanup.enter_context(services.respond(served.engine, len(prompt.ids), values))
        ids = prompt.ids or fit_prompt([], tokenizer, params, model.config.block_size)
        scored = await prompt._replace(ids=ids, params=[params]).score(model, services.executor)
        choice = await services.worker.run(values, _begin, prompt, scored, params, served.loaded, body)
        response.start(choice, prompt.ids, params)
        return stream(_events(response))

    app.add_api_route("/api/generate", create, methods=["POST"], response_model=None)


def _begin(
    prompt: Prompt, scored: list[SampledToken], params: SamplingParams, loaded: Loaded, body: GenerateRequest
) -> Choice:
    """Return the choice that begins with the prompt, of which the tokens in the window were scored."""
    given = [*map(SampledToken, prompt.cropped), *scored]
    vocab_size = loaded.model.vocab_size
    details = DetailStream(loaded.tokenizer, vocab_size, params, len(given), body.known, body.alternatives)
    choice = Choice(0, params.seed, details)
    choice.begin(prompt.text, given)
    return choice


async def _events(response: Response) -> AsyncIterator[str]:
    async for part in response.parts():
        body = {"tokens": part["logprobs"], "finish_reason": part["finish_reason"]}
        yield await response.work(part, event, body)


class DetailStream:
    """Describes tokens, and holds them back until the text they belong to is shown.

    Args:
        vocab_size: the model's vocabulary size; tokens come with log-probabilities of all ids, or of the top ones.
        params: how they were sampled, without a repetition penalty.
        given: tokens at the beginning, which are not sampled.
        known: tokens at the beginning that are not to be described.
        alternatives: most likely tokens in each list.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        params: SamplingParams,
        given: int,
        known: int,
        alternatives: int = ALTERNATIVES,
    ) -> None:
        self._params, self._given, self._known, self._listed = params, given, known, alternatives
        self._text, self._count = TextStream(tokenizer), 0
        self._labels = labels_of(tokenizer, range(vocab_size))
        self._fed: list[SampledToken] = []
        self._described: list[dict[str, Any]] = []

    def feed(self, tokens: Iterable[SampledToken]) -> None:
        self._fed += tokens
        if len(self._fed) >= MAX_FED:
            self._describe()

    def take(self, length: int) -> list[dict[str, Any]]:
        """Return, once, all tokens so far; a token without a text is the beginning of a character."""
        self._describe()
        described, self._described = self._described, []
        return described

    def _describe(self) -> None:
        tokens, self._fed = self._fed, []
        for token, chance, own, sampled in zip(tokens, *self._alternatives(tokens), strict=True):
            described = {
                "id": token.id,
                "label": self._labels[token.id],
                "text": self._text.feed(token.id),
                "probability": None if token.logprob is None else _round(math.exp(token.logprob)),
                "chance": chance,
                "own": own,
                "sampled": sampled,
                "isGiven": self._count < self._given,
            }
            if self._count >= self._known:
                self._described.append(described)
            self._count += 1

    def _alternatives(self, tokens: list[SampledToken]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the probability of each in sampling, and the most likely ones, by the model and by sampling.

        These are lists of id, label and probability.
        """
        first = max(0, self._known - self._count)
        rows = [row for row, token in enumerate(tokens) if token.top and row >= first]
        chances: list[Any] = [None for _ in tokens]
        own: list[Any] = [[] for _ in tokens]
        sampled: list[Any] = [[] for _ in tokens]
        if rows:
            logprobs = _matrix([tokens[row] for row in rows], len(self._labels))
            after = next_token_probabilities(logprobs, self._params)
            for lists, probabilities in ((own, logprobs.exp()), (sampled, after)):
                for row, best in zip(rows, most_likely(probabilities, self._listed), strict=True):
                    lists[row] = [[index, self._labels[index], _round(p)] for index, p in best if p > 0]
            for row, probabilities in zip(rows, after, strict=True):
                chances[row] = _round(probabilities[tokens[row].id].item())
        return chances, own, sampled


def _matrix(tokens: list[SampledToken], vocab_size: int) -> Tensor:
    """Return the log-probabilities (N, V) that tokens come with, their own among them, else minus infinity."""
    logprobs = torch.full((len(tokens), vocab_size), -math.inf)
    for row, token in zip(logprobs, tokens, strict=True):
        known = {token.id: token.logprob, **dict(token.top)}
        row[list(known)] = torch.tensor(list(known.values()))
    return logprobs


def _round(value: float) -> float:
    """Return a number with the digits that a page may show, which are half the bytes."""
    return float(f"{value:.5g}")
