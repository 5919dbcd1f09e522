"""Log-probabilities as the completions protocol shows them."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypedDict

import torch

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.generation import SampledToken
from gpt.generation.text import TextStream
from gpt.generation.tokens import to_sampled_tokens
from gpt.model import GPT


class LogprobsBody(TypedDict):
    """See `gpt.serving.http.protocol.Logprobs`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class _Shown(NamedTuple):
    token: SampledToken
    offset: int


class LogprobsStream:
    """Holds back log-probabilities until the text they belong to is shown.

    A token that begins where the shown text ends, such as one of a stop string, is never shown.

    Args:
        tokenizer: the model's tokenizer.
        before: ids of the text before, which is not shown.
    """

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = ()) -> None:
        self._tokenizer, self._text = tokenizer, TextStream(tokenizer)
        self._text.begin(before)
        self._held: deque[_Shown] = deque()
        self._length = 0

    def feed(self, tokens: Iterable[SampledToken]) -> None:
        """Add tokens in the order of the text."""
        for token in tokens:
            self._held.append(_Shown(token, self._length))
            self._length += len(self._text.feed(token.id))

    def take(self, length: int) -> LogprobsBody:
        """Return what belongs to the first `length` characters and was not returned before."""
        body = LogprobsBody(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        while self._held and self._held[0].offset < length:
            token, offset = self._held.popleft()
            body["tokens"].append(self._name(token.id))
            body["token_logprobs"].append(token.logprob)
            body["top_logprobs"].append(self._top(token))
            body["text_offset"].append(offset)
        return body

    def _top(self, token: SampledToken) -> dict[str, float] | None:
        """Return the most likely tokens, and the one that was sampled if it is not among them."""
        if token.logprob is None:
            return None
        return {self._name(index): logprob for index, logprob in (*token.top, (token.id, token.logprob))}

    def _name(self, index: int) -> str:
        """Return the text of a token, or its bytes where it is no character on its own."""
        if index >= self._tokenizer.vocab_size:
            return f"id:{index}"
        content = self._tokenizer.token_bytes(index)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


@torch.inference_mode()
def prompt_logprobs(model: GPT, ids: Sequence[int], params: SamplingParams) -> list[SampledToken]:
    """Return the tokens of a prompt with their log-probabilities, which the first does not have.

    Args:
        model: in eval mode.
        ids: at least one; at most `block_size`.
        params: how many of the most likely tokens are listed beside each, see `describe`.
    """
    first = [SampledToken(ids[0])]
    if len(ids) == 1:
        return first
    inputs = torch.tensor([ids[:-1]], device=next(model.parameters()).device)
    return first + to_sampled_tokens(ids[1:], model(inputs)[0], params)
