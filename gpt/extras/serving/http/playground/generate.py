"""`/api/generate`: a text as the serving engine writes it, with the most likely alternatives to
each of its tokens.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Annotated, Any, NamedTuple

import torch
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field
from torch import Tensor

from gpt.checkpoint import Loaded
from gpt.config import SamplingParams
from gpt.config.filter_fields import filter_fields
from gpt.config.ranges import Seed
from gpt.extras.inspection.views.tokens import Alternative, labels_of, most_likely
from gpt.extras.serving.http.completions import event, stream
from gpt.extras.serving.http.prompts import Prompt, length_of, prompt_logprobs, read_prompts
from gpt.extras.serving.http.protocol import CompletionRequest, Ids
from gpt.extras.serving.http.responses import Choice, Response, Services, until_answered
from gpt.generation.sampling import next_token_probabilities
from gpt.generation.text import TextStream, fit_prompt
from gpt.generation.tokens import SampledToken

FIXED_FIELDS: dict[str, Any] = {
    # the tokens of the prompt are shown, and so are exactly those of its text
    "echo": True,
    "n": 1,
    "stop": [],
    "repetition_penalty": 1.0,
    "overflow": "slide",
    "long_prompt": "crop",
}
"""Fields that the page has no input for. Without them here, the model's configuration would decide
about the text.
"""
MAX_LOGPROBS = 4096
"""Most log-probabilities of a token. Of a larger vocabulary, the less likely tokens count as
impossible.
"""
DEFAULT_ALTERNATIVES = 10
"""Tokens that are listed, where a request does not say how many."""
MAX_FED = 64
"""Most tokens that wait to be described: each holds the log-probabilities of the whole vocabulary
until then.
"""


class GenerateRequest(filter_fields()):  # type: ignore[misc]
    """A text to continue. The same request to /v1/completions has the same text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: str | Ids = Field(description="A text, or its token ids.")
    model: str | None = Field(None, description="One of /v1/models; left out: the server's first.")
    max_tokens: int = Field(300, ge=0, description="Tokens to generate.")
    temperature: float = Field(1.0, ge=0, le=2, description="0: always the most likely token.")
    seed: Seed = Field(0, description="Same seed, same text.")
    known: int = Field(
        0, ge=0, description="Tokens at the beginning of the prompt that are not to be described."
    )
    alternatives: int = Field(
        DEFAULT_ALTERNATIVES, ge=1, le=MAX_LOGPROBS, description="Most likely tokens in each list."
    )


def add_generate(app: FastAPI, services: Services) -> None:
    """Add the endpoint."""

    async def create(
        body: GenerateRequest, cleanup: Annotated[AsyncExitStack, Depends(until_answered)]
    ) -> StreamingResponse:
        """Continue a prompt, and send each token with the most likely ones in its place.

        Every event has a list `tokens`, those of the prompt first. Each token has its `id`, `label`
        and `text`, its `probability` by the model and its `chance` by the sampling parameters, and
        the most likely tokens in its place: `own` by the model, `sampled` by the sampling
        parameters.
        """
        worker = services.worker
        served = await cleanup.enter_async_context(services.models.use(body.model))
        model = served.loaded.model
        tokenizer = served.loaded.tokenizer
        shared = body.model_dump(exclude={"known", "alternatives"})
        request = CompletionRequest(**shared, **FIXED_FIELDS)
        # a request of /v1/completions may have several prompts, this one has one
        (prompt,) = await worker.run(
            length_of(body.prompt),
            read_prompts,
            request,
            services.limits,
            model,
            tokenizer,
            served.loaded.config.sample,
        )
        # of the whole vocabulary, since the sampling parameters are applied to all tokens
        logprobs = min(model.vocab_size, MAX_LOGPROBS)
        params = prompt.params[0].model_copy(update={"logprobs": logprobs})

        num_given = len(prompt.cropped) + len(prompt.ids)
        num_described = max(0, num_given - body.known) + params.max_new_tokens
        # each described token has two probabilities and two lists
        values = num_given + num_described * (2 + 2 * body.alternatives)
        response = cleanup.enter_context(services.respond(served.engine, len(prompt.ids), values))

        # an empty prompt is scored as the line end that the engine puts in its place
        ids = prompt.ids or fit_prompt([], tokenizer, params, model.config.block_size)
        loop = asyncio.get_running_loop()
        scored = await loop.run_in_executor(services.executor, prompt_logprobs, model, ids, params)
        choice = await worker.run(values, _begin, prompt, scored, params, served.loaded, body)
        response.start(choice, prompt.ids, params)
        return stream(_events(response))

    app.add_api_route("/api/generate", create, methods=["POST"], response_model=None)


def _begin(
    prompt: Prompt,
    scored: list[SampledToken],
    params: SamplingParams,
    loaded: Loaded,
    body: GenerateRequest,
) -> Choice:
    """Return the choice that begins with the prompt.

    Args:
        scored: the tokens of the prompt in the window, with log-probabilities.
    """
    # The model does not read the tokens before the window, which have no log-probabilities.
    cropped = [SampledToken(token) for token in prompt.cropped]
    given = cropped + scored
    details = DetailStream(loaded, params, len(given), body.known, body.alternatives)
    choice = Choice(0, params.seed, details)
    choice.begin(prompt.text, given)
    return choice


async def _events(response: Response) -> AsyncIterator[str]:
    """Yield an event for each part of the response, as it is generated."""
    async for part in response.parts():
        body = {"tokens": part.logprobs, "finish_reason": part.finish_reason}
        yield await response.work(part, event, body)


class Alternatives(NamedTuple):
    """The tokens that could stand in a token's place.

    Attributes:
        chance: the probability of the token itself, after the sampling parameters.
        own: id, label and probability of each of the most likely tokens, by the model.
        sampled: the same, after the sampling parameters.
    """

    chance: float | None
    own: list[list[Any]]
    sampled: list[list[Any]]


class DetailStream:
    """Describes tokens for the page.

    Args:
        loaded: the model and its tokenizer.
        params: how the tokens were sampled, without a repetition penalty, which the probabilities
            here leave out.
        num_given: tokens at the beginning, which are not sampled.
        num_known: tokens at the beginning that the page has the descriptions of.
        num_listed: most likely tokens in each list.
    """

    def __init__(
        self,
        loaded: Loaded,
        params: SamplingParams,
        num_given: int,
        num_known: int,
        num_listed: int,
    ) -> None:
        self._params = params
        self._num_given = num_given
        self._num_known = num_known
        self._num_listed = num_listed
        self._text = TextStream(loaded.tokenizer)
        self._count = 0  # tokens that were described, known ones included
        # of all ids of the model, which may have more than the tokenizer
        self._labels = labels_of(loaded.tokenizer, range(loaded.model.vocab_size))
        self._fed: list[SampledToken] = []
        self._described: list[dict[str, Any]] = []

    def feed(self, tokens: Iterable[SampledToken]) -> None:
        """Add tokens; `take` returns their descriptions."""
        self._fed += tokens
        if len(self._fed) >= MAX_FED:
            self._describe()

    def take(self, length: int) -> list[dict[str, Any]]:
        """Return the descriptions that were not returned before.

        Unlike those of a `LogprobsStream`, they do not depend on the `length` of the text that is
        shown: here, no stop string holds text back. A token without a text is the beginning of a
        character.
        """
        self._describe()
        described = self._described
        self._described = []
        return described

    def _describe(self) -> None:
        tokens = self._fed
        self._fed = []
        for token, alternatives in zip(tokens, self._alternatives(tokens), strict=True):
            probability = None if token.logprob is None else _round(math.exp(token.logprob))
            described = {
                "id": token.id,
                "label": self._labels[token.id],
                "text": self._text.feed(token.id),
                "probability": probability,
                **alternatives._asdict(),
                "isGiven": self._count < self._num_given,
            }
            if self._count >= self._num_known:
                self._described.append(described)
            self._count += 1

    def _alternatives(self, tokens: list[SampledToken]) -> list[Alternatives]:
        """Return the alternatives to each token: none where they are known, or nothing predicts the
        token.
        """
        found = [Alternatives(None, [], []) for _ in tokens]
        first_unknown = max(0, self._num_known - self._count)
        rows = []
        for row in range(first_unknown, len(tokens)):
            if tokens[row].top:
                rows.append(row)
        if not rows:
            return found
        logprobs = _matrix([tokens[row] for row in rows], len(self._labels))  # (N, V)
        sampling = next_token_probabilities(logprobs, self._params)  # (N, V)
        own = most_likely(logprobs.exp(), self._num_listed)
        sampled = most_likely(sampling, self._num_listed)
        for index, row in enumerate(rows):
            chance = sampling[index, tokens[row].id].item()
            found[row] = Alternatives(
                _round(chance), self._with_labels(own[index]), self._with_labels(sampled[index])
            )
        return found

    def _with_labels(self, alternatives: list[Alternative]) -> list[list[Any]]:
        """Return id, label and probability of the possible ones among the most likely tokens."""
        return [[index, self._labels[index], _round(p)] for index, p in alternatives if p > 0]


def _matrix(tokens: list[SampledToken], vocab_size: int) -> Tensor:
    """Return the log-probabilities (N, V) that tokens come with.

    Those that are not among them are minus infinity.
    """
    logprobs = torch.full((len(tokens), vocab_size), -math.inf)
    for row, token in zip(logprobs, tokens, strict=True):
        known = {token.id: token.logprob, **dict(token.top)}
        row[list(known)] = torch.tensor(list(known.values()))
    return logprobs


def _round(value: float) -> float:
    """Return a number with as many digits as a page may show, which take half the bytes of all
    digits.
    """
    return float(f"{value:.5g}")
