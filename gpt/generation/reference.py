"""The decoding loop as plainly as it can be written: engines are tested against it, and training samples by it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import torch

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.generation.sampling import next_token_probabilities, sample
from gpt.generation.text import decode_text, encode_prompt
from gpt.generation.tokens import TokenIds, Window, check_finite
from gpt.model import GPT, eval_mode
from gpt.system.device import to_device


def reference_tokens(model: GPT, prompt: TokenIds, params: SamplingParams) -> Iterator[int]:
    """Yield `max_new_tokens` ids after a prompt; see `reference_rows`."""
    return (row[0] for row in reference_rows(model, prompt, params, [params.seed]))


def reference_rows(model: GPT, prompt: TokenIds, params: SamplingParams, seeds: Sequence[int]) -> Iterator[list[int]]:
    """Yield the next id for each seed, `max_new_tokens` times; every one takes the whole window through the model.

    Raises:
        GenerationError: the logits are not finite.
    """
    window = Window(model.config.block_size)
    device = next(model.parameters()).device
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    sequences = [list(prompt) for _ in seeds]
    for _ in range(params.max_new_tokens):
        with torch.inference_mode(), eval_mode(model):
            logits = model(to_device(torch.tensor([window.of(each) for each in sequences]), device))[:, -1]
        check_finite(logits, sequences)
        probabilities = next_token_probabilities(logits, params, sequences)
        uniforms = [torch.rand(1, generator=each, dtype=torch.float32) for each in generators]
        ids = sample(probabilities, torch.cat(uniforms)).tolist()
        for sequence, index in zip(sequences, ids, strict=True):
            sequence.append(index)
        yield ids


def reference_texts(
    model: GPT, tokenizer: Tokenizer, params: SamplingParams, seeds: Sequence[int], poll: Callable[[], None]
) -> list[str]:
    """Return a text for each seed that begins after a line end; `poll` is called after every token."""
    params, rows = params.limited_to(tokenizer.vocab_size), [list[int]() for _ in seeds]
    prompt = encode_prompt(tokenizer, "", params, model.config.block_size)
    for ids in reference_rows(model, prompt, params, seeds):
        for row, index in zip(rows, ids, strict=True):
            row.append(index)
        poll()
    kept = [takewhile(lambda index: index != params.end_id, row) for row in rows]
    return [decode_text(tokenizer, row, params.stop) for row in kept]
