"""From the body of a request to prompts for the engine, and the log-probabilities that the protocol shows of them."""

import asyncio
import codecs
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple, cast

import torch

from gpt.config import SampleConfig, SamplingParams
from gpt.config.filters import FILTERS
from gpt.config.sections import SEEDS
from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.extras.serving.http.limits import Limits
from gpt.extras.serving.http.protocol import APIError, CompletionRequest, Ids, naming
from gpt.generation.text import UNKNOWN, TextStream, check_ids, decode_text, fit_prompt, token_name
from gpt.generation.tokens import SampledToken, not_finite, to_sampled_tokens
from gpt.model import GPT
from gpt.system.errors import GenerationError, GPTError

DEFAULT_MAX_TOKENS = 16
"""The protocol's default."""
LONGEST_CHARACTER = 4
"""Bytes of UTF-8, and so the most tokens that a character has."""
SAMPLING = (
    *("stop", "temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("overflow", "long_prompt"),
)
"""Fields that a request shares with `SamplingParams`, besides those of the filters."""


class Prompt(NamedTuple):
    """One prompt of a request.

    Attributes:
        text: its text, without the beginning of a character at its end if tokens follow.
        ids: its tokens in the window, empty for an empty text.
        cropped: those before the window.
        params: one per completion; they differ in the seed.
        is_shown: whether completions begin with it.
    """

    text: str
    ids: list[int]
    cropped: list[int]
    params: list[SamplingParams]
    is_shown: bool

    @property
    def values(self) -> int:
        """Most tokens and log-probabilities of the completions, with those of a prompt that is shown."""
        logprobs = self.params[0].logprobs
        tokens = self.params[0].max_new_tokens
        if logprobs is not None:
            tokens = (tokens + self.described) * (2 + logprobs)
        if self.is_shown:
            tokens += len(self.text)
        return len(self.params) * tokens

    @property
    def described(self) -> int:
        """How many tokens of the prompt have log-probabilities in a completion, where these are asked for."""
        return len(self.ids) if self.is_shown else 0

    async def score(self, model: GPT, executor: Executor) -> list[SampledToken]:
        """Return the prompt's tokens in the window with their log-probabilities."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(executor, prompt_logprobs, model, self.ids, self.params[0])


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
        text = convert_newlines(given) if isinstance(given, str) else _text_of(given, tokenizer, params)
        read.append(Prompt(text, ids if every else [], every[: -len(ids)], with_seeds, bool(request.echo)))
    tokens = sum(len(each.params) * (params.max_new_tokens + each.described) for each in read)
    limits.check_logprobs(tokens, request.logprobs)
    return read


def length_of(prompt: str | Ids | Sequence[str | Ids]) -> int:
    """Return how many characters and token ids one prompt or several have."""
    own = len(prompt)
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return own
    return own + sum(len(each) for each in cast("Sequence[str | Ids]", prompt))


def _text_of(ids: Ids, tokenizer: Tokenizer, params: SamplingParams) -> str:
    """Return the text of a prompt: what the first sampled token may end of a character is shown with that token."""
    return TextStream(tokenizer).begin(ids) if params.max_new_tokens else decode_text(tokenizer, ids)


def _params(request: CompletionRequest, defaults: SampleConfig, vocab_size: int) -> SamplingParams:
    given = {name: value for name in (*SAMPLING, *FILTERS) if (value := getattr(request, name)) is not None}
    if isinstance(request.stop, str):
        given["stop"] = (request.stop,)
    given["max_new_tokens"] = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    given["logprobs"] = None if request.logprobs is None else min(request.logprobs, vocab_size)
    if request.ignore_eos:
        given["end_id"] = None
    given["logit_bias"] = tuple((int(index), bias) for index, bias in (request.logit_bias or {}).items())
    with naming("logit_bias"):
        check_ids((index for index, _ in given["logit_bias"]), vocab_size)
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
    logits = model(inputs)[0]
    finite = torch.isfinite(logits).all(dim=-1)
    if not finite.all():
        raise APIError(500, str(not_finite(int((~finite).nonzero()[0]))))  # JSON has no such numbers
    return first + to_sampled_tokens(ids[1:], logits, params)


class DescribedToken(NamedTuple):
    """A token and the most likely ones in its place, with log-probabilities in nats.

    Attributes:
        name: its text, or its bytes where it is no character on its own.
        content: its bytes; none where only the model has such a token.
        logprob: None for the first token of a text.
        top: names, bytes and log-probabilities of the most likely ones.
        offset: where it begins in the text that is shown.
    """

    name: str
    content: bytes
    logprob: float | None
    top: list[tuple[str, bytes, float]]
    offset: int


class LogprobsStream:
    """Holds back log-probabilities until the text they belong to is shown.

    A token that begins where the shown text ends, such as one of a stop string, is never shown.

    Args:
        before: ids of the text before, which is not described.
        offset: characters of that text that are shown.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = (), offset: int = 0) -> None:
        self._tokenizer, self._text = tokenizer, TextStream(tokenizer)
        self._held: deque[tuple[SampledToken, int]] = deque()
        self._length = 0
        self._unfinished = b""  # of a character
        for index in before[-LONGEST_CHARACTER:]:  # which can end with the beginning of a character
            self._add(index)
        self._length = offset

    def feed(self, tokens: Iterable[SampledToken]) -> None:
        for token in tokens:
            self._held.append((token, self._add(token.id)))

    def take(self, length: int) -> list[DescribedToken]:
        """Return what belongs to the first `length` characters and was not returned before."""
        described = []
        while self._held and self._held[0][1] < length:
            token, offset = self._held.popleft()
            top = [(*self._name(index), logprob) for index, logprob in token.top]
            described.append(DescribedToken(*self._name(token.id), token.logprob, top, offset))
        return described

    def _add(self, index: int) -> int:
        """Add a token to the text, and return where it begins there: where the character of its first byte is."""
        is_known = index < self._tokenizer.vocab_size
        content = self._tokenizer.token_bytes(index) if is_known else UNKNOWN.encode()
        begun = (self._unfinished + content[:1]).decode(errors="replace")  # it may break off another character
        offset = self._length + max(0, len(begun) - 1)
        self._length += len(self._text.feed(index))
        unfinished = self._unfinished + content
        self._unfinished = unfinished[codecs.utf_8_decode(unfinished, "replace", False)[1] :]
        return offset

    def _name(self, index: int) -> tuple[str, bytes]:
        """Return the name of a token, and its bytes; an id without a text has none."""
        is_known = index < self._tokenizer.vocab_size
        return token_name(self._tokenizer, index), self._tokenizer.token_bytes(index) if is_known else b""
