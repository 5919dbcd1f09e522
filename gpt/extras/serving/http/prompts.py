"""Read the prompts of a request for the engine, and describe tokens by the log-probabilities that
the protocol shows.
"""

import asyncio
import codecs
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, cast

import torch

from gpt.config import SampleConfig, SamplingParams
from gpt.config.filters import FILTERS
from gpt.config.ranges import SEEDS
from gpt.data.pairs import TURN
from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.extras.serving.http.limits import Limits
from gpt.extras.serving.http.protocol import APIError, CompletionRequest, Ids, naming
from gpt.generation.text import (
    UNKNOWN,
    TextStream,
    check_ids,
    decode_text,
    encode_text,
    fit_prompt,
    token_name,
)
from gpt.generation.tokens import SampledToken, not_finite, to_sampled_tokens
from gpt.model import GPT
from gpt.system.errors import GenerationError, GPTError

DEFAULT_MAX_TOKENS = 16
"""The protocol's default."""
MAX_CHARACTER_BYTES = 4
"""Most bytes of a character in UTF-8, and so the most tokens that a character has."""
SHARED_FIELDS = (
    "stop",
    "temperature",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "overflow",
    "long_prompt",
)
"""Fields that a request shares with `SamplingParams`, besides those of the filters."""


class Prompt(NamedTuple):
    """One prompt of a request.

    Attributes:
        text: its text; if tokens follow, without an unfinished character at its end.
        ids: its tokens in the window, empty for an empty text.
        cropped: its tokens before the window.
        params: one for each completion; they differ in the seed.
        is_shown: whether the completions begin with the prompt.
        is_marked: whether the first of all tokens is the mark before items, which is no part of the
            text.
    """

    text: str
    ids: list[int]
    cropped: list[int]
    params: list[SamplingParams]
    is_shown: bool
    is_marked: bool

    @property
    def text_ids(self) -> list[int]:
        """The tokens of the text in the window."""
        return self.ids[1:] if self.is_marked and not self.cropped else self.ids

    @property
    def cropped_text_ids(self) -> list[int]:
        """The tokens of the text before the window."""
        return self.cropped[1:] if self.is_marked else self.cropped

    @property
    def values(self) -> int:
        """Most tokens and log-probabilities of the completions, those of a prompt that is shown
        included.
        """
        logprobs = self.params[0].logprobs
        each = self.params[0].max_new_tokens
        if logprobs is not None:
            # each token has a text, its own log-probability and those of the most likely tokens
            each = (each + self.num_described) * (2 + logprobs)
        if self.is_shown:
            each += len(self.text)
        return len(self.params) * each

    @property
    def num_described(self) -> int:
        """Number of tokens of the prompt that have log-probabilities in a completion, where these
        are asked for.
        """
        return len(self.text_ids) if self.is_shown else 0

    async def score(self, model: GPT, executor: Executor) -> list[SampledToken]:
        """Return the tokens of the text in the window with their log-probabilities."""
        loop = asyncio.get_running_loop()
        scored = await loop.run_in_executor(
            executor, prompt_logprobs, model, self.ids, self.params[0]
        )
        return scored[len(self.ids) - len(self.text_ids) :]


def read_prompts(
    request: CompletionRequest,
    limits: Limits,
    model: GPT,
    tokenizer: Tokenizer,
    defaults: SampleConfig,
) -> list[Prompt]:
    """Return the prompts of a request, or raise APIError.

    Fields that the request leaves out are as in `defaults`.
    """
    given_prompts = _as_list(request.prompt)
    limits.check(request, len(given_prompts))
    params = _sampling_params(request, defaults, tokenizer.vocab_size)
    seeded = [params.model_copy(update={"seed": seed}) for seed in _seeds(request)]
    prompts = []
    for given in given_prompts:
        try:
            ids = _encode(given, tokenizer, params)
            window = fit_prompt(ids, tokenizer, params, model.config.block_size)
        except GPTError as error:
            # of a prompt that is not empty, whose ids the model has, only the length can be wrong
            is_too_long = isinstance(error, GenerationError) and len(given) > 0
            code = "context_length_exceeded" if is_too_long else None
            raise APIError(400, f"prompt: {error}", "prompt", code) from None
        cropped = ids[: -len(window)]  # the window is the end of the prompt
        if not ids:
            # the engine puts a line end in place of an empty prompt, which is no token of the
            # request
            window = []
        text = _text_of(given, tokenizer, params)
        is_marked = isinstance(given, str) and params.begin_id is not None
        prompts.append(Prompt(text, window, cropped, seeded, bool(request.echo), is_marked))
    tokens = sum(len(seeded) * (params.max_new_tokens + each.num_described) for each in prompts)
    limits.check_logprobs(tokens, request.logprobs)
    return prompts


def _as_list(prompt: str | Ids | Sequence[str | Ids]) -> Sequence[str | Ids]:
    """Return the prompts of a request, which may be one text, the token ids of one, or a list of
    either.
    """
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [cast("str | Ids", prompt)]
    return cast("Sequence[str | Ids]", prompt)


def _seeds(request: CompletionRequest) -> list[int]:
    """Return the seed of each completion of a prompt: consecutive ones, from a random one if none
    is given.
    """
    first = secrets.randbelow(SEEDS) if request.seed is None else request.seed
    return [(first + index) % SEEDS for index in range(request.n or 1)]


def length_of(prompt: str | Ids | Sequence[str | Ids]) -> int:
    """Return how many characters and token ids one prompt or several have."""
    num_items = len(prompt)
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return num_items
    # the prompts are counted too: there may be thousands of one character
    return num_items + sum(len(each) for each in cast("Sequence[str | Ids]", prompt))


def _text_of(prompt: str | Ids, tokenizer: Tokenizer, params: SamplingParams) -> str:
    """Return the text of a prompt.

    An unfinished character at the end of token ids is left out if tokens follow, since the first
    one may end it.
    """
    if isinstance(prompt, str):
        return convert_newlines(prompt)
    if params.max_new_tokens == 0:
        return decode_text(tokenizer, prompt)
    return TextStream(tokenizer).begin(prompt)


def _sampling_params(
    request: CompletionRequest, defaults: SampleConfig, vocab_size: int
) -> SamplingParams:
    """Return the sampling parameters of a request, without its seed."""
    given: dict[str, Any] = {}
    for name in (*SHARED_FIELDS, *FILTERS):
        value = getattr(request, name)
        if value is not None:
            given[name] = value
    if isinstance(request.stop, str):
        given["stop"] = (request.stop,)
    if "stop" in given and TURN in defaults.stop:
        # an answer ends at its mark, whatever else a client names
        given["stop"] = (*given["stop"], TURN)
    given["max_new_tokens"] = request.max_tokens
    if request.max_tokens is None:
        given["max_new_tokens"] = DEFAULT_MAX_TOKENS
    given["logprobs"] = None
    if request.logprobs is not None:
        given["logprobs"] = min(request.logprobs, vocab_size)
    if request.ignore_eos:
        given["end_id"] = None
    biases = request.logit_bias or {}  # their keys are token ids as strings, as all keys of JSON
    given["logit_bias"] = tuple((int(index), bias) for index, bias in biases.items())
    with naming("logit_bias"):
        check_ids((index for index, _ in given["logit_bias"]), vocab_size)
    return defaults.params(**given).limited_to(vocab_size)


def _encode(prompt: str | Ids, tokenizer: Tokenizer, params: SamplingParams) -> list[int]:
    """Return the ids of a prompt, of a text those that `encode_text` gives.

    Given ids stay as they are, also where the tokenizer would choose others for their text.
    """
    if isinstance(prompt, str):
        return encode_text(tokenizer, prompt, params)
    check_ids(prompt, tokenizer.vocab_size)
    return prompt


@torch.inference_mode()
def prompt_logprobs(model: GPT, ids: Sequence[int], params: SamplingParams) -> list[SampledToken]:
    """Return tokens, at most a window, with their log-probabilities.

    The first token has none, since nothing predicts it. `params` says how many of the most likely
    tokens are listed beside each other token, see `to_sampled_tokens`.
    """
    first = [SampledToken(ids[0])]
    if len(ids) == 1:
        return first
    device = next(model.parameters()).device
    inputs = torch.tensor([ids[:-1]], device=device)  # (1, T)
    logits = model(inputs)[0]  # (T, V)
    is_finite = torch.isfinite(logits).all(dim=-1)
    if not is_finite.all():
        # JSON has no NaN and no infinity
        position = int((~is_finite).nonzero()[0])
        raise APIError(500, str(not_finite(position)))
    return first + to_sampled_tokens(ids[1:], logits, params)


class DescribedToken(NamedTuple):
    """A token and the most likely ones in its place, with log-probabilities in nats.

    Attributes:
        name: its text, or its bytes where it is no whole character.
        content: its bytes; empty where the model has such a token and the tokenizer has not.
        logprob: its log-probability; None for the first token of a text.
        top: name, bytes and log-probability of each of the most likely tokens.
        offset: where it begins in the text that is shown, in characters.
    """

    name: str
    content: bytes
    logprob: float | None
    top: list[tuple[str, bytes, float]]
    offset: int


class LogprobsStream:
    """Holds back the descriptions of tokens until the text that they belong to is shown.

    A token that begins where the shown text ends, such as one of a stop string, is never shown.

    Args:
        before: ids of the text before the described tokens.
        offset: characters of that text that are shown.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = (), offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._text = TextStream(tokenizer)
        self._held: deque[tuple[SampledToken, int]] = deque()  # tokens, and where each begins
        self._length = 0  # characters of the text so far
        self._unfinished = b""  # first bytes of a character at the end of the text
        # the text before may end inside a character, which the first described token goes on with
        for index in before[-MAX_CHARACTER_BYTES:]:
            self._add(index)
        self._length = offset

    def feed(self, tokens: Iterable[SampledToken]) -> None:
        """Add tokens to the text; `take` returns them when they are shown."""
        for token in tokens:
            self._held.append((token, self._add(token.id)))

    def take(self, length: int) -> list[DescribedToken]:
        """Return the tokens that begin in the first `length` characters and were not returned
        before.
        """
        described = []
        while self._held and self._held[0][1] < length:
            token, offset = self._held.popleft()
            top = [(*self._name(index), logprob) for index, logprob in token.top]
            name, content = self._name(token.id)
            described.append(DescribedToken(name, content, token.logprob, top, offset))
        return described

    def _add(self, index: int) -> int:
        """Add a token to the text, and return the position of the character that has its first
        byte.
        """
        is_known = index < self._tokenizer.vocab_size
        content = self._tokenizer.token_bytes(index) if is_known else UNKNOWN.encode()
        # If the first byte goes on with the unfinished character, both are one character; else
        # there are two, and the unfinished one is shown as a replacement character.
        with_first_byte = (self._unfinished + content[:1]).decode(errors="replace")
        offset = self._length + max(0, len(with_first_byte) - 1)
        self._length += len(self._text.feed(index))
        unfinished = self._unfinished + content
        _, num_finished = codecs.utf_8_decode(unfinished, "replace", False)
        self._unfinished = unfinished[num_finished:]
        return offset

    def _name(self, index: int) -> tuple[str, bytes]:
        """Return the name and the bytes of a token.

        An id that the tokenizer does not have has no bytes.
        """
        is_known = index < self._tokenizer.vocab_size
        content = self._tokenizer.token_bytes(index) if is_known else b""
        return token_name(self._tokenizer, index), content
