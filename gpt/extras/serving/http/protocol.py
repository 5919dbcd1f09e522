"""The OpenAI protocols of completions and chats: the bodies of requests and of errors."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gpt.config.filter_fields import optional_filter_fields
from gpt.config.ranges import Seed
from gpt.config.suggestions import nearest
from gpt.system.errors import GPTError, quoted

# `fail_fast`, since a body can have a million wrong values, and one error is enough
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True, min_length=1)]
Texts = Annotated[list[str], Field(fail_fast=True, min_length=1)]
Prompts = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=4096)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Annotated[list[Stop], Field(fail_fast=True, max_length=16)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Biases = dict[
    Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]
]

DEFAULT_CHAT_TOKENS = 256
"""`max_tokens` of a chat that leaves it out; the protocol has no default."""
MAX_MESSAGE_CHARACTERS = 500
"""Most characters of the message of an error, which may quote the request."""
MAX_PARAM_CHARACTERS = 100
"""Most characters of the name of a field in an error, since a request can send any name."""
IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Fields that common clients send and that change nothing here."""
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "seed": (-1,),
    "stop": ("",),
    "suffix": ("",),
    "tool_calls": ([],),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "top_k": (-1,),
    "top_logprobs": (0,),
}
"""Values of fields, supported or not, that mean the same as leaving the field out."""
UNKNOWN_KEY = "unknown_key"
"""The type of the validation error of a field that is not supported."""
CANCELLED = "cancelled"
"""The code of the error of a text that was cut off because the server was stopped, which is no
failure.
"""
ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
"""The protocol's name for the errors of a status, where it has one of its own."""


class _Body(BaseModel):
    """An object of a request. A field that is null counts as left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, body: Any) -> Any:
        """Return an object without fields that mean nothing, or refuse its first unknown field."""
        if not isinstance(body, dict):
            return body
        given = {key: value for key, value in body.items() if not _means_nothing(key, value)}
        for key in given:
            if key not in cls.model_fields:
                hint = nearest(key, cls.model_fields)
                context = {"key": quoted(key, MAX_PARAM_CHARACTERS), "hint": hint}
                raise PydanticCustomError(UNKNOWN_KEY, "not supported{hint}", context)
        return given


def _means_nothing(key: str, value: Any) -> bool:
    """Return whether a field means the same as leaving it out."""
    if value is None or key in IGNORED_FIELDS:
        return True
    # the type counts: `logprobs: 0` asks for log-probabilities, `logprobs: false` for none
    candidates = [each for each in NEUTRAL_VALUES.get(key, ()) if type(each) is type(value)]
    return value in candidates


class StreamOptions(_Body):
    """Options of a stream."""

    include_usage: bool | None = Field(None, description="Send a last chunk with the token counts.")
    continuous_usage_stats: bool | None = Field(
        None, description="Send the token counts so far in every chunk."
    )
    include_obfuscation: bool | None = Field(None, description="Ignored: chunks are never padded.")


class SamplingRequest(_Body, optional_filter_fields()):  # type: ignore[misc]
    """The fields of both protocols.

    Sampling parameters that are left out are as in the `sample` section of the model's
    configuration.
    """

    model: str | None = Field(None, description="One of /v1/models; left out: the server's first.")
    max_tokens: int | None = Field(
        None, ge=0, description="Tokens to generate; left out: 16, or 256 of a chat."
    )
    max_completion_tokens: int | None = Field(
        None, ge=0, description="The newer name of max_tokens, which it replaces."
    )
    n: int | None = Field(None, ge=1, description="Completions per prompt; number i has seed + i.")
    stream: bool | None = Field(
        None, description="Send the text as it is generated, by server-sent events."
    )
    stream_options: StreamOptions | None = None
    stop: Stop | Stops | None = Field(None, description="Stop before any of these texts.")
    seed: Seed | None = Field(None, description="Same seed, same text; left out: random.")
    temperature: float | None = Field(
        None, ge=0, le=2, description="0: always the most likely token."
    )
    repetition_penalty: float | None = Field(
        None, gt=0, description="Above 1: less likely what is there already."
    )
    overflow: Literal["slide", "stop"] | None = Field(
        None, description="When the window is full: slide it, or stop."
    )
    long_prompt: Literal["refuse", "crop"] | None = Field(
        None, description="A prompt longer than the window."
    )
    presence_penalty: Penalty | None = Field(
        None, description="Subtracted from the logits of tokens in the text."
    )
    frequency_penalty: Penalty | None = Field(
        None, description="Subtracted for each time a token is in the text."
    )
    logit_bias: Biases | None = Field(
        None, max_length=1024, description="Added to the logits, by token id."
    )
    ignore_eos: bool | None = Field(None, description="Go on after the token that ends a text.")

    @model_validator(mode="before")
    @classmethod
    def _without_zero_top_p(cls, body: Any) -> Any:
        """Read `top_p` 0 as greedy sampling, since the most likely token alone has that
        probability.
        """
        if not isinstance(body, dict):
            return body
        top_p = body.get("top_p")
        is_number = type(top_p) in (int, float)  # False == 0, but is no number of JSON
        if is_number and top_p == 0:
            return {**body, "top_p": None, "temperature": 0}
        return body

    @model_validator(mode="after")
    def _with_one_max_tokens(self) -> Self:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self


class CompletionRequest(SamplingRequest):
    """A request for completions."""

    prompt: str | Texts | Ids | Prompts = Field(
        description="A text, or token ids, or several of either."
    )
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(
        None, ge=0, le=20, description="Log-probabilities (nats) of tokens and of this many others."
    )


class TextPart(_Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


TextParts = Annotated[list[TextPart], Field(fail_fast=True)]


class Message(_Body):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | TextParts
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(SamplingRequest):
    """A request to continue messages.

    A model of plain text reads them as one text: a line for each, without the roles.
    """

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=4096)]
    logprobs: bool | None = Field(None, description="Log-probabilities (nats) of tokens.")
    top_logprobs: int | None = Field(
        None, ge=0, le=20, description="And of this many others; needs logprobs."
    )

    def to_completion(self) -> CompletionRequest:
        """Return the request to continue the last message.

        Of a text longer than the window, the end is read.
        """
        if self.top_logprobs and not self.logprobs:
            raise APIError(400, "top_logprobs: it needs logprobs: true", "top_logprobs")
        defaults = {"long_prompt": "crop", "max_tokens": DEFAULT_CHAT_TOKENS}
        not_shared = {"messages", "logprobs", "top_logprobs"}
        fields = {**defaults, **self.model_dump(exclude=not_shared, exclude_none=True)}
        if self.logprobs:
            fields["logprobs"] = self.top_logprobs or 0
        text = "\n".join(message.text for message in self.messages)
        return CompletionRequest(**fields, prompt=text)


class TokenizeRequest(_Body):
    """A text to tokenize."""

    prompt: str
    model: str | None = None


class JSONText(JSONResponse):
    """A body of JSON in ASCII, since half of a surrogate pair, which a vocabulary may have, has no
    UTF-8.
    """

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class APIError(Exception):
    """An error that is sent as the answer.

    Attributes:
        status: its HTTP status.
        param: the field of the request that is wrong.
        code: what is wrong, for programs.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The body to send, as an answer or as an event of a stream."""
        default = "invalid_request_error" if self.status < 500 else "server_error"
        error = {
            "message": quoted(self.message, MAX_MESSAGE_CHARACTERS),
            "type": ERROR_TYPES.get(self.status, default),
            "param": None if self.param is None else quoted(self.param, MAX_PARAM_CHARACTERS),
            "code": self.code,
        }
        return {"error": error}

    def response(self) -> JSONResponse:
        """Return the answer.

        Where the same request may succeed later, it asks clients to try again in a second.
        """
        headers = {"Retry-After": "1"} if self.status in (429, 503) else None
        return JSONText(self.body, self.status, headers)


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Turn a GPTError, such as of an unknown character, into an APIError that names a field of the
    request.
    """
    try:
        yield
    except GPTError as error:
        raise APIError(400, f"{param}: {error}", param) from None


def log_failure(what: str, error: APIError) -> None:
    """Write into the server's log why a request failed, if the server is to blame."""
    if error.status >= 500 and error.code != CANCELLED:
        message = quoted(error.message, MAX_MESSAGE_CHARACTERS)
        logging.getLogger("uvicorn.error").error("%s: %d: %s", what, error.status, message)
