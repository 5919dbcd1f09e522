"""The probability of a text under a model, as a whole and token by token."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.data.tokenizers import Ids, Tokenizer, convert_newlines
from gpt.data.tokens import IGNORE
from gpt.data.words import WordTokenizer
from gpt.model import GPT
from gpt.system.device import widest_dtype
from gpt.system.errors import GenerationError
from gpt.training.loss import sliding_batches


@dataclass(frozen=True)
class Score:
    """The probability of one text.

    Attributes:
        logprobs: log-probability in nats of every token but the first, which has no context.
        chars: number of characters that those tokens complete.
    """

    logprobs: tuple[float, ...]
    chars: int

    @property
    def logprob(self) -> float:
        """Return the log-probability of the text after its first token, in nats."""
        return math.fsum(self.logprobs)

    @property
    def perplexity(self) -> float:
        """Return `exp(-mean log-probability)` per token; infinity where a float cannot hold it."""
        try:
            return math.exp(-self.logprob / len(self.logprobs))
        except OverflowError:
            return math.inf

    @property
    def bits_per_char(self) -> float:
        """Return `-log2` of the probability, divided by the number of characters."""
        return -self.logprob / math.log(2) / self.chars


@torch.inference_mode()
def score_text(model: GPT, tokenizer: Tokenizer, text: str, stride: int | None = None) -> Score:
    """Compute the log-probability of a text, token by token.

    Args:
        model: in eval mode.
        stride: tokens between the starts of windows, see `sliding_batches`; a small one is slow but
            gives every token a long context. None: `block_size`, for adjacent blocks.

    Raises:
        DataError: the text has characters outside the vocabulary.
        GenerationError: the text has fewer than two tokens, `stride` is below 1, or the logits are
            not finite.
    """
    if stride is not None and stride < 1:
        raise GenerationError(f"stride is {stride}, expected at least 1")
    text = convert_newlines(text)
    ids = tokenizer.encode(text)
    if len(ids) < 2:
        raise GenerationError(f"a text of {len(ids)} tokens has nothing to score; give two or more")
    block_size = model.config.block_size
    # a longer stride would leave tokens out
    stride = min(stride or block_size, block_size)
    logprobs = torch.cat(
        [
            _window_logprobs(model, inputs, targets)
            for inputs, targets in sliding_batches(ids, block_size, batch_size=1, stride=stride)
        ]
    )
    if not torch.isfinite(logprobs).all():
        position = int((~torch.isfinite(logprobs)).nonzero()[0])
        raise GenerationError(
            f"the model's logits after position {position} are not finite; "
            "its weights may be corrupt"
        )
    return Score(tuple(logprobs.tolist()), _completed_chars(tokenizer, ids, text))


def _window_logprobs(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probabilities in nats of a window's targets but the ignored ones.

    Args:
        inputs: (1, T).
        targets: (1, T), `IGNORE` where an earlier window has scored the token.

    Returns:
        (N,) float64, on the CPU.
    """
    device = next(model.parameters()).device
    # the positions are found on the CPU, where the targets are, so that nothing waits for the
    # device
    positions = (targets[0] != IGNORE).nonzero().squeeze(-1)  # (N,)
    scored = targets[0, positions].to(device)  # (N,)
    logits = model(inputs.to(device))[0, positions.to(device)]  # (N, V)
    # in the widest type, since the small differences of float32 add up over a long text
    logprobs = logits.to(widest_dtype(device)).log_softmax(-1)  # (N, V)
    return logprobs.gather(-1, scored.unsqueeze(-1)).squeeze(-1).cpu().double()  # (N,)


def _completed_chars(tokenizer: Tokenizer, ids: Ids, text: str) -> int:
    """Count the characters that the tokens after the first complete.

    Args:
        ids: those of `text`.
    """
    if isinstance(tokenizer, WordTokenizer):
        # An `<unk>` is decoded as five characters, whatever word of the text it stands for.
        return sum(len(part) for part in tokenizer.split(text)[1:])
    decoder = tokenizer.stream()
    # the first token may be a part of a character, which the next ones complete
    decoder.feed(int(ids[0]))
    completed = sum(len(decoder.feed(int(index))) for index in ids[1:])
    return completed + len(decoder.flush())
