"""Bodies of the OpenAI completions protocol: what is accepted, and what is documented of the answers."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from gpt.config.filter_fields import with_filter_fields
from gpt.config.sections import Seed

# a body can have a million wrong values: the first one is enough
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True, min_length=1)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Prompts = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=4096)]
Prompt = str | Annotated[Texts, Field(min_length=1)] | Ids | Prompts

ONLY_ZERO: JsonDict = {"minimum": 0, "maximum": 0}
"""In the document; the error of another value says more than that."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Body):
    """Options of a stream."""

    include_usage: bool | None = Field(None, description="Send a last chunk with the token counts.")


@with_filter_fields(after="temperature", optional=True)
class CompletionRequest(_Body):
    """A request for completions. What is left out is as in the `sample` section of the model's configuration."""

    prompt: Prompt = Field(description="A text, or token ids, or several of either.")
    model: str | None = Field(None, description="One of /v1/models; left out: the server's first.")
    max_tokens: int | None = Field(None, ge=0, description="Tokens to generate; left out: 16.")
    n: int | None = Field(None, ge=1, description="Completions per prompt; number i has seed + i.")
    stream: bool | None = Field(None, description="Send the text as it is generated, by server-sent events.")
    stream_options: StreamOptions | None = None
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(None, ge=0, description="Log-probabilities (nats) of tokens and of this many others.")
    stop: str | Texts | None = Field(None, description="Stop before any of these texts.")
    seed: Seed | None = Field(None, description="Same seed, same text; left out: random.")
    temperature: float | None = Field(None, ge=0, le=2, description="0: always the most likely token.")
    repetition_penalty: float | None = Field(None, gt=0, description="Above 1: less likely what is there already.")
    overflow: Literal["slide", "stop"] | None = Field(None, description="When the window is full: slide it, or stop.")
    long_prompt: Literal["refuse", "crop"] | None = Field(None, description="A prompt longer than the window.")
    user: str | None = Field(None, description="Accepted and not used.")
    best_of: int | None = Field(
        None, description="Not supported beyond the value of n.", json_schema_extra={"minimum": 1}
    )
    suffix: str | None = Field(None, description="Not supported.", json_schema_extra={"maxLength": 0})
    logit_bias: dict[str, float] | None = Field(
        None, description="Not supported.", json_schema_extra={"maxProperties": 0}
    )
    presence_penalty: float | None = Field(
        None, description="Not supported; repetition_penalty is.", json_schema_extra=ONLY_ZERO
    )
    frequency_penalty: float | None = Field(
        None, description="Not supported; repetition_penalty is.", json_schema_extra=ONLY_ZERO
    )


class Logprobs(BaseModel):
    """Log-probabilities in nats; the first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion."""

    index: int
    text: str
    seed: int
    logprobs: Logprobs | None
    finish_reason: Literal["length", "stop"] | None


class Usage(BaseModel):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """The answer to a request, or one chunk of it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None


class Model(BaseModel):
    """An available model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class Error(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """The answer in place of the one asked for."""

    error: Error
