"""Items that a model writes, and which of them stand in the text that it was trained on."""

from gpt.checkpoint import Loaded
from gpt.checkpoint.corpus import training_items
from gpt.config.sections import SEEDS
from gpt.data.dataset import Dataset
from gpt.generation.batch import TextBatch
from gpt.generation.runtime import build_runtime

SAMPLES_AT_A_TIME = 64
"""Sequences of a batch: more hardly raise the throughput, but need more memory."""
NUM_SAMPLES = 1_000
"""Samples that an evaluation writes to count the new ones: their share is right to 3% or better."""


def sample_items(loaded: Loaded, count: int) -> list[str]:
    """Write items from their beginning, by the run's own sampling parameters and seeds 0, 1, ...

    An item that does not end within `sample.max_new_tokens` is cut off there.
    """
    runtime = build_runtime(loaded.model)
    params = loaded.config.sample.params()
    texts = [""] * count
    for first in range(0, count, SAMPLES_AT_A_TIME):
        seeds = range(first, min(first + SAMPLES_AT_A_TIME, count))
        assert seeds.stop <= SEEDS
        prompts = [""] * len(seeds)
        for chunk in TextBatch(runtime, loaded.tokenizer, prompts, params, seeds):
            texts[first + chunk.row] += chunk.text
    return texts


def count_new(loaded: Loaded, dataset: Dataset) -> int:
    """Return how many of `NUM_SAMPLES` samples are items, and not those of the training split."""
    known = training_items(dataset) | {""}
    return sum(text not in known for text in sample_items(loaded, NUM_SAMPLES))
