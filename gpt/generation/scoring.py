"""How probable a given text is to a model, in all and character by character."""

import math
from dataclasses import dataclass

import torch

from gpt.data.tokenizers import Tokenizer
from gpt.device import widest_dtype
from gpt.errors import GenerationError
from gpt.model import GPT


@dataclass(frozen=True)
class Score:
    """Of one text.

    Attributes:
        logprobs: log-probability, in nats, of every token but the first, which nothing comes before.
        chars: characters those tokens complete.
    """

    logprobs: tuple[float, ...]
    chars: int

    @property
    def logprob(self) -> float:
        """Of the whole text after its first token, in nats."""
        return math.fsum(self.logprobs)

    @property
    def perplexity(self) -> float:
        """Per token: `exp(-mean log-probability)`."""
        return math.exp(-self.logprob / len(self.logprobs))

    @property
    def bits_per_char(self) -> float:
        """`-log2` of the probability, over the characters."""
        return -self.logprob / math.log(2) / self.chars


@torch.inference_mode()
def score_text(model: GPT, tokenizer: Tokenizer, text: str, stride: int | None = None) -> Score:
    """Log-probability of a text, token by token.

    Args:
        model: in eval mode.
        tokenizer: the one the model was trained with.
        text: of any length.
        stride: windows of `block_size` begin so many tokens apart, and each gives only what the one
            before did not reach: small is slow and gives every token a long context. None:
            `block_size`, blocks side by side; a text that fits the window is seen whole either way.

    Raises:
        DataError: characters outside the vocabulary.
        GenerationError: the text has fewer than two tokens, `stride` is below 1, or the logits are not finite.
    """
    if stride is not None and stride < 1:
        raise GenerationError(f"stride is {stride}, expected at least 1")
    ids = torch.from_numpy(tokenizer.encode(text).astype("int64"))
    if len(ids) < 2:
        raise GenerationError(f"a text of {len(ids)} tokens has nothing to score; give two or more")
    device = next(model.parameters()).device
    width, last = model.config.block_size, len(ids) - 1
    step = min(stride or width, width)
    starts = [0, *range(step, last - width + step, step)] if last > width else [0]
    logprobs = torch.empty(last, dtype=torch.float64)
    for start in starts:
        end = min(start + width, last)
        begin = 0 if start == 0 else start + width - step  # what the window before did not reach
        logits = model(ids[start:end].unsqueeze(0).to(device))[0, begin - start :]
        targets = ids[begin + 1 : end + 1].to(device)
        logprobs[begin:end] = (
            logits.to(widest_dtype(logits.device)).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1).cpu()
        )
    if not torch.isfinite(logprobs).all():
        position = int((~torch.isfinite(logprobs)).nonzero()[0])
        raise GenerationError(f"the model's logits after position {position} are not finite; its weights are damaged")
    begun = tokenizer.stream().feed(int(ids[0]))  # empty where the first token is a part of a character
    return Score(tuple(logprobs.tolist()), len(tokenizer.decode(ids.tolist())) - len(begun))
