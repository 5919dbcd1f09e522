"""The decoding loop as plainly as it can be written: every token takes the whole window.

Engines are tested against it, and training samples by it.
"""

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


def reference_rows(
    model: GPT, prompt: TokenIds, params: SamplingParams, seeds: Sequence[int]
) -> Iterator[list[int]]:
    """Yield the next id for each seed, `max_new_tokens` times.

    The sequences have one length, so that they form a batch without a mask.

    Raises:
        GenerationError: the logits are not finite.
    """
    window = Window(model.config.block_size)
    device = next(model.parameters()).device
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    sequences = [list(prompt) for _ in seeds]
    for _ in range(params.max_new_tokens):
        idx = torch.tensor([window.of(sequence) for sequence in sequences])  # (B, T)
        with torch.inference_mode(), eval_mode(model):
            logits = model(to_device(idx, device))[:, -1]  # (B, V)
        check_finite(logits, sequences)
        probabilities = next_token_probabilities(logits, params, sequences)  # (B, V)
        uniforms = [torch.rand(1, generator=each, dtype=torch.float32) for each in generators]
        ids = sample(probabilities, torch.cat(uniforms)).tolist()
        for sequence, index in zip(sequences, ids, strict=True):
            sequence.append(index)
        yield ids


def reference_texts(
    model: GPT,
    tokenizer: Tokenizer,
    params: SamplingParams,
    seeds: Sequence[int],
    poll: Callable[[], None],
    prompt: Sequence[int] | None = None,
) -> list[str]:
    """Return a text for each seed that follows a prompt.

    Args:
        poll: called after every token, so that a training run reacts to signals while it samples.
        prompt: token ids; None means the ids that an empty prompt stands for, such as a line end.
    """
    params = params.limited_to(tokenizer.vocab_size)
    if prompt is None:
        prompt = encode_prompt(tokenizer, "", params, model.config.block_size)
    rows: list[list[int]] = [[] for _ in seeds]
    for ids in reference_rows(model, prompt, params, seeds):
        for row, index in zip(rows, ids, strict=True):
            row.append(index)
        poll()
    # All rows are sampled to the same length; the tokens after an end token are cut off here.
    texts = []
    for row in rows:
        before_end = takewhile(lambda index: index != params.end_id, row)
        texts.append(decode_text(tokenizer, before_end, params.stop))
    return texts
