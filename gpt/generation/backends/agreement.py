"""Show that the native engine computes a model's logits, and samples from logits as PyTorch does."""

import ctypes

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.errors import DeviceError
from gpt.generation.sampling import next_token_probabilities, sample
from gpt.kernels.decoding.engine import Engine, sample_rows
from gpt.model import GPT, eval_mode

TOLERANCE = 1e-3
"""Largest difference of two logits, relative to the deviation of all; rounding brings 2e-5 in any format of weights."""
FLOPS = 8e9
"""Most arithmetic of a comparison: of a large model only the beginning of a window is compared."""
ROWS, VOCABULARY = 64, 128
"""Size of the logits that both sample from."""


def check_logits(model: GPT, engine: Engine) -> None:
    """Compare the logits of one window, or of its beginning, by an engine of one sequence made from the model.

    Raises:
        DeviceError: the engine computes something else.
    """
    idx = _window(model)
    with torch.inference_mode(), eval_mode(model), torch.autocast("cpu", enabled=False):
        right = model(idx.unsqueeze(0))[0].float()
    tokens, parts = idx.tolist(), []
    for start in range(0, len(tokens), engine.max_tokens):
        part = tokens[start : start + engine.max_tokens]
        positions = range(start, start + len(part))
        parts.append(engine.forward(part, [0] * len(part), positions, range(len(part))))
    difference, deviation = float((torch.cat(parts) - right).abs().max()), float(right.std())
    if deviation < float("inf") and not difference <= TOLERANCE * deviation:  # others are refused when they are sampled
        raise DeviceError(f"its logits differ by {difference:.2g} from the model's, whose deviation is {deviation:.2g}")


def _window(model: GPT) -> Tensor:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    length = max(2, min(model.config.block_size, int(FLOPS / (2 * parameters))))
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.vocab_size, (length,), generator=generator, device="cpu")


def why_not_sample(library: ctypes.CDLL, params: SamplingParams) -> str | None:
    """Return why the engine must not sample by parameters that it knows; None if it samples as PyTorch does."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(ROWS, VOCABULARY, generator=generator, dtype=torch.float32, device="cpu")
    uniforms = torch.rand(ROWS, generator=generator, dtype=torch.float32, device="cpu")
    penalized = params.repetition_penalty != 1.0
    seen = (torch.arange(ROWS * VOCABULARY, device="cpu") % 3 == 0).view(ROWS, VOCABULARY) if penalized else None
    sequences = [] if seen is None else [row.nonzero().flatten().tolist() for row in seen]
    right = sample(next_token_probabilities(logits, params, sequences), uniforms).tolist()
    found = sample_rows(library, logits, params, uniforms, None if seen is None else seen.to(torch.uint8))
    others = sum(one != other for one, other in zip(found, right, strict=True))
    if others > 1:  # one may lie at the edge of two tokens
        return f"{others} of {ROWS} tokens differ between the native engine and gpt/generation/sampling.py"
    return None
