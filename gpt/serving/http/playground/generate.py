"""`/api/generate`: a text as the serving engine writes it, with the alternatives to each of its tokens."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from gpt.checkpoint import Loaded
from gpt.config import SamplingParams
from gpt.config.filter_fields import with_filter_fields
from gpt.config.sections import Seed
from gpt.generation import SampledToken
from gpt.generation.text import fit_prompt
from gpt.serving.http.answer import Answer, Choice
from gpt.serving.http.answers import Answers, until_answered
from gpt.serving.http.events import parts, stream
from gpt.serving.http.information import Responses
from gpt.serving.http.jobs import Job, read_jobs
from gpt.serving.http.limits import Limits
from gpt.serving.http.logprobs import prompt_logprobs
from gpt.serving.http.models import Models
from gpt.serving.http.playground.tokens import ALTERNATIVES, DetailStream
from gpt.serving.http.protocol import CompletionRequest, Ids

FIXED: dict[str, Any] = {
    "n": 1,
    "stop": [],
    "repetition_penalty": 1.0,
    "overflow": "slide",
    "long_prompt": "crop",
}
"""What the page does not let its reader choose, so that nothing but the fields of a request decides about the text."""


MAX_LOGPROBS = 4096
"""Of a token, from which its alternatives are found; what a larger vocabulary has beyond them counts as impossible."""


@with_filter_fields(after="temperature")
class GenerateRequest(BaseModel):
    """A text to continue. The same request to /v1/completions has the same text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: str | Ids = Field(description="A text, or its token ids.")
    model: str | None = Field(None, description="One of /v1/models; left out: the server's first.")
    max_tokens: int = Field(300, ge=0, description="Tokens to generate.")
    temperature: float = Field(1.0, ge=0, le=2, description="0: always the most likely token.")
    seed: Seed = Field(0, description="Same seed, same text.")
    known: int = Field(0, ge=0, description="Tokens at the beginning of the prompt that are not to be described.")


class Generate:
    """Answers requests for texts with details.

    Args:
        models: the models it serves.
        limits: limits of a request.
        answers: opens new answers.
        heavy: runs other computations one at a time.
    """

    def __init__(self, models: Models, limits: Limits, answers: Answers, heavy: Executor) -> None:
        self._models, self._limits, self._answers, self._heavy = models, limits, answers, heavy

    async def create(
        self, body: GenerateRequest, cleanup: Annotated[AsyncExitStack, Depends(until_answered)]
    ) -> Response:
        """Continue a prompt, and send each token with the most likely ones in its place.

        Every event is a list of `tokens`, each with `id`, `label`, `text`, `probability` and `chance`, which are before
        and after the sampling parameters, and the most likely tokens `own` and `sampled`, before and after them.
        The tokens of the prompt come first.
        """
        self._answers.check()
        served = await cleanup.enter_async_context(self._models.use(body.model))
        loaded = served.loaded
        request = CompletionRequest(**body.model_dump(exclude={"known"}), **FIXED)
        (job,) = read_jobs(request, self._limits, loaded.model, loaded.tokenizer, loaded.config.sample)
        count = min(loaded.model.vocab_size, MAX_LOGPROBS)
        params = job.params[0].model_copy(update={"logprobs": count})
        held = params.model_copy(update={"logprobs": 2 * ALTERNATIVES})
        answer = self._answers.open(served.engine, [job._replace(params=[held])], cleanup)
        given = await self._score(loaded, job, params)
        details = DetailStream(loaded.tokenizer, loaded.model.vocab_size, params, len(given), body.known)
        choice = Choice(0, params.seed, details)
        choice.begin(job.prompt, given)
        answer.start(choice, job.ids, params)
        return stream(_bodies(answer))

    async def _score(self, loaded: Loaded, job: Job, params: SamplingParams) -> list[SampledToken]:
        """Return the tokens of a prompt, those in the window with their log-probabilities."""
        model, tokenizer = loaded.model, loaded.tokenizer
        ids = job.ids or fit_prompt([], tokenizer, params, model.config.block_size)
        loop = asyncio.get_running_loop()
        scored = await loop.run_in_executor(self._heavy, prompt_logprobs, model, ids, params)
        return [*map(SampledToken, job.cropped), *scored]


async def _bodies(answer: Answer) -> AsyncIterator[dict[str, Any]]:
    """Yield what is sent in events."""
    async for part in parts(answer):
        yield {"tokens": part["logprobs"], "finish_reason": part["finish_reason"]}


def add_generate(
    app: FastAPI, models: Models, limits: Limits, answers: Answers, heavy: Executor, errors: Responses
) -> None:
    """Add `POST /api/generate`; see `Generate`, and `add_playground` for the arguments."""
    app.add_api_route(
        "/api/generate",
        Generate(models, limits, answers, heavy).create,
        methods=["POST"],
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "Tokens"}, **errors},
    )
