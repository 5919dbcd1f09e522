"""The probability of a text under a model, as a whole and token by token."""

import math
from dataclasses import dataclass

import torch

from gpt.api.online import dynamic_evaluation
from gpt.data.tokenizers import Tokenizer, convert_newlines
from gpt.model import GPT
from gpt.system.device import widest_dtype
from gpt.system.errors import GenerationError
from gpt.training.loss import IGNORE, sliding_batches


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
        """That of the text after its first token, in nats."""
        return math.fsum(self.logprobs)

    @property
    def perplexity(self) -> float:
        """`exp(-mean log-probability)` per token."""
        try:
            return math.exp(-self.logprob / len(self.logprobs))
        except OverflowError:
            return math.inf

    @property
    def bits_per_char(self) -> float:
        """Return `-log2` of the probability, divided by the number of characters."""
        return -self.logprob / math.log(2) / self.chars


@torch.inference_mode()
def score_text(
    model: GPT, tokenizer: Tokenizer, text: str, stride: int | None = None, rate: float | None = None
) -> Score:
    """Compute the log-probability of a text, token by token.

    Args:
        model: in eval mode.
        stride: tokens between windows, see `sliding_batches`; a small one is slow but gives every token a long
            context. None: `block_size`, for adjacent blocks.
        rate: learn from each window after it is scored, see `learning`; None: do not.

    Raises:
        DataError: characters outside the vocabulary.
        GenerationError: the text has fewer than two tokens, `stride` is below 1, or the logits are not finite.
        InputError: see `learning`.
    """
    if stride is not None and stride < 1:
        raise GenerationError(f"stride is {stride}, expected at least 1")
    ids = tokenizer.encode(convert_newlines(text))
    if len(ids) < 2:
        raise GenerationError(f"a text of {len(ids)} tokens has nothing to score; give two or more")
    device, block_size = next(model.parameters()).device, model.config.block_size
    batches = sliding_batches(ids, block_size, 1, min(stride or block_size, block_size))
    if rate is not None:
        model, batches = dynamic_evaluation(model, batches, rate)
    found = []
    for inputs, targets in batches:
        # on the CPU, without waiting for a device
        fresh = (targets[0] != IGNORE).nonzero().squeeze(-1)
        logits = model(inputs.to(device))[0, fresh.to(device)]
        logprobs = logits.to(widest_dtype(device)).log_softmax(-1)
        found.append(logprobs.gather(-1, targets[0, fresh, None].to(device)).squeeze(-1).cpu().double())
    logprobs = torch.cat(found)
    if not torch.isfinite(logprobs).all():
        position = int((~torch.isfinite(logprobs)).nonzero()[0])
        raise GenerationError(f"the model's logits after position {position} are not finite; its weights are damaged")
    stream = tokenizer.stream()
    # the first token may be a part of a character, which the next ones complete
    stream.feed(int(ids[0]))
    chars = sum(len(stream.feed(int(index))) for index in ids[1:]) + len(stream.flush())
    return Score(tuple(logprobs.tolist()), chars)
