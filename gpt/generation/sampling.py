"""From logits to a token: pure functions, applied in one order.

Repetition penalty, presence and frequency penalties, logit bias, ids that may be sampled, temperature, the filters of
`gpt.config.filters`, softmax, sample. A filter sets logits to -inf; what is left is renormalized by the softmax at the
end. Temperature 0 is greedy, and makes the filters idle, but not the penalties.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.config.filters import FILTERS
from gpt.system.device import widest_dtype


def next_token_probabilities(logits: Tensor, params: SamplingParams, sequences: Sequence[Sequence[int]] = ()) -> Tensor:
    """Return the distribution (..., V) that the next token is sampled from, by logits (..., V).

    Penalties and `logit_bias` take the `sequences` of tokens so far; logits are then (B, V). Temperature 0 puts all on
    the most likely token, the lowest id among equals. On the CPU under `torch.use_deterministic_algorithms`.
    """
    if logits.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        logits = logits.cpu()  # CUDA refuses cumulative sums then, which filters and `sample` are made of
    if params.repetition_penalty != 1.0:
        logits = repetition_penalty(logits, sequences, params.repetition_penalty)
    if params.logit_bias or params.presence_penalty or params.frequency_penalty:
        logits = logits + logit_changes(logits.shape, params, sequences).to(logits)
    logits = limit_ids(logits, params.ids)
    if params.temperature == 0:
        most_likely = logits == logits.amax(dim=-1, keepdim=True)
        first = most_likely & (most_likely.cumsum(dim=-1) == 1)
        return first.to(logits.dtype)
    logits = logits - logits.amax(dim=-1, keepdim=True)  # the largest is 0, which no temperature makes infinite
    logits = logits / max(params.temperature, torch.finfo(logits.dtype).tiny)
    for name, part in FILTERS.items():
        value = getattr(params, name)
        if value != part.off:
            logits = part.apply(logits, value)
    return logits.softmax(dim=-1)


def limit_ids(logits: Tensor, ids: int | None) -> Tensor:
    """Return logits (..., V) with -inf from id `ids` on; None: as they are."""
    if ids is None or ids >= logits.size(-1):
        return logits
    return torch.cat((logits[..., :ids], torch.full_like(logits[..., ids:], -torch.inf)), dim=-1)


def repetition_penalty(logits: Tensor, sequences: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Make tokens that a sequence has already less likely: logits l > 0 become l / penalty, others l * penalty.

    Keskar et al. 2019, 1909.05858, section 4.1, with the sign rule of its later implementations. What is finite stays
    finite, however small or large the penalty.
    """
    seen = torch.zeros(logits.shape, dtype=torch.bool)
    for row, sequence in zip(seen, sequences, strict=True):
        row[list(set(sequence))] = True
    seen = seen.to(logits.device, non_blocking=True)
    limits = torch.finfo(logits.dtype)
    penalty = min(max(penalty, limits.tiny), limits.max)  # infinity times a logit of 0 would be NaN
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty).clamp(limits.min, limits.max)
    return torch.where(seen, penalized, logits)


def logit_changes(shape: torch.Size, params: SamplingParams, sequences: Sequence[Sequence[int]]) -> Tensor:
    """Return what the penalties that OpenAI defines and `logit_bias` add to logits (B, V); a prompt counts as text."""
    changes = torch.zeros(shape)
    for row, sequence in zip(changes, sequences, strict=True):
        for index, count in Counter(sequence).items():
            row[index] -= params.presence_penalty + params.frequency_penalty * count
    for index, bias in params.logit_bias:
        changes[:, index] += bias
    return changes


def sample(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Sample one token per row by inverting the cumulative distribution.

    One number decides a row, so that a sequence depends on its own generator only: probabilities (B, V) and uniforms
    (B,) float32 in [0, 1) give (B,) int64, never a token of probability 0.
    """
    cumulative = probabilities.to(widest_dtype(probabilities.device)).cumsum(dim=-1)
    target = uniform.to(cumulative, non_blocking=True).unsqueeze(-1) * cumulative[..., -1:]
    last = (cumulative < cumulative[..., -1:]).sum(dim=-1)  # float32 may round the target up to the sum
    return torch.minimum(torch.searchsorted(cumulative, target, right=True).squeeze(-1), last)
