"""The decoding loop as plainly as it can be written: what every engine and runner is tested against."""

from collections.abc import Iterator

import torch

from gpt.config import SamplingParams
from gpt.generation.sampling import next_token_probabilities, sample
from gpt.generation.sequence import Window
from gpt.generation.tokens import TokenIds, check_finite
from gpt.model import GPT, eval_mode


def reference_tokens(model: GPT, prompt: TokenIds, params: SamplingParams) -> Iterator[int]:
    """Yield `max_new_tokens` ids after a prompt, of which every one takes the whole window through the model.

    Raises:
        GenerationError: the logits are not finite.
    """
    window = Window(model.config.block_size)
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(params.seed)
    sequence = list(prompt)
    for _ in range(params.max_new_tokens):
        with torch.inference_mode(), eval_mode(model):
            logits = model(torch.tensor([window.of(sequence)], device=device))[:, -1]
        check_finite(logits, [sequence])
        probabilities = next_token_probabilities(logits, params, [sequence])
        sequence.append(int(sample(probabilities, torch.rand(1, generator=generator, dtype=torch.float32))))
        yield sequence[-1]
