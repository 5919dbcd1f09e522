"""From logits to a token: pure functions, applied in one order.

The order is: repetition penalty, presence and frequency penalties, logit bias, ids that may be
sampled, temperature, the filters of `gpt.config.filters`, softmax, sample. A filter sets logits to
-inf; the softmax at the end renormalizes what is left. Temperature 0 is greedy: it disables the
filters, but not the penalties.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.config.filters import FILTERS
from gpt.system.device import widest_dtype


def next_token_probabilities(
    logits: Tensor, params: SamplingParams, sequences: Sequence[Sequence[int]] = ()
) -> Tensor:
    """Return the distribution (..., V) from which the next token is sampled, given logits (..., V).

    Temperature 0 puts all probability on the most likely token, the lowest id among equals. Under
    `torch.use_deterministic_algorithms` the distribution is on the CPU.

    Args:
        sequences: the tokens of each sequence so far, which penalties and `logit_bias` need; logits
            must be (B, V) if any of these is set.
    """
    if logits.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        # CUDA then refuses cumulative sums, which top-p and `sample` compute.
        logits = logits.cpu()
    if params.repetition_penalty != 1.0:
        logits = repetition_penalty(logits, sequences, params.repetition_penalty)
    if params.logit_bias or params.presence_penalty or params.frequency_penalty:
        logits = logits + logit_changes(logits.shape, params, sequences).to(logits)
    logits = limit_ids(logits, params.ids)
    if params.temperature == 0:
        most_likely = logits == logits.amax(dim=-1, keepdim=True)
        # The cumulative count is 1 only at the first of several equals.
        first = most_likely & (most_likely.cumsum(dim=-1) == 1)
        return first.to(logits.dtype)
    # The largest logit becomes 0, so that division by a small temperature cannot make it infinite.
    logits = logits - logits.amax(dim=-1, keepdim=True)
    logits = logits / max(params.temperature, torch.finfo(logits.dtype).tiny)
    for name, component in FILTERS.items():
        value = getattr(params, name)
        # A filter at the value that turns it off would change nothing, and takes time.
        if value != component.off:
            logits = component.apply(logits, value)
    return logits.softmax(dim=-1)


def limit_ids(logits: Tensor, ids: int | None) -> Tensor:
    """Return logits (..., V) with -inf from id `ids` on; without `ids` they stay as they are."""
    if ids is None or ids >= logits.size(-1):
        return logits
    return torch.cat((logits[..., :ids], torch.full_like(logits[..., ids:], -torch.inf)), dim=-1)


def repetition_penalty(
    logits: Tensor, sequences: Sequence[Sequence[int]], penalty: float
) -> Tensor:
    """Make tokens that a sequence already has less likely.

    Their logits l > 0 become l / penalty, others l * penalty (Keskar et al. 2019, 1909.05858,
    section 4.1, with the sign rule of its later implementations). Finite logits stay finite,
    however small or large the penalty is.
    """
    seen = torch.zeros(logits.shape, dtype=torch.bool)  # (B, V), on the CPU
    for row, sequence in zip(seen, sequences, strict=True):
        row[list(set(sequence))] = True
    seen = seen.to(logits.device, non_blocking=True)
    limits = torch.finfo(logits.dtype)
    # A penalty that float32 rounds to infinity would make NaN of a logit of 0.
    penalty = min(max(penalty, limits.tiny), limits.max)
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalized.clamp(limits.min, limits.max), logits)


def logit_changes(
    shape: torch.Size, params: SamplingParams, sequences: Sequence[Sequence[int]]
) -> Tensor:
    """Return what presence and frequency penalty and `logit_bias` add to logits (B, V).

    The penalties are those that OpenAI's API defines; the tokens of a prompt count too.
    """
    changes = torch.zeros(shape)  # on the CPU, where the tokens are counted
    for row, sequence in zip(changes, sequences, strict=True):
        for index, count in Counter(sequence).items():
            row[index] -= params.presence_penalty + params.frequency_penalty * count
    for index, bias in params.logit_bias:
        changes[:, index] += bias
    return changes


def sample(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Sample one token per row by inverting the cumulative distribution.

    One number decides a row, so that a sequence depends on its own generator only. Probabilities
    (B, V) and uniforms (B,) float32 in [0, 1) give (B,) int64, never a token of probability 0.
    """
    # The widest type keeps rounding from moving the border between two tokens.
    cumulative = probabilities.to(widest_dtype(probabilities.device)).cumsum(dim=-1)  # (B, V)
    total = cumulative[..., -1:]  # (B, 1)
    # The total may differ from 1 by rounding, so that the uniforms are scaled to it.
    uniform = uniform.to(cumulative, non_blocking=True)  # of the same type, on the same device
    target = uniform.unsqueeze(-1) * total  # (B, 1)
    # With `right=True` the index after equal sums is found: a token of probability 0 has the sum of
    # the token before it, and is skipped.
    found = torch.searchsorted(cumulative, target, right=True).squeeze(-1)  # (B,)
    # Rounding may raise the target to the total, for which an index beyond the last possible token
    # is found. That token is the first one whose sum is the total, and so its index is the number
    # of tokens with smaller sums.
    last_possible = (cumulative < total).sum(dim=-1)  # (B,)
    return torch.minimum(found, last_possible)
