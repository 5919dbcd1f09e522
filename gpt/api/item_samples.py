"""Items that a model writes, and how many of them stand in the text that it was trained on."""

from gpt.checkpoint import Loaded
from gpt.checkpoint.corpus import training_items
from gpt.data.dataset import Dataset
from gpt.generation.batch import sample_texts
from gpt.generation.runtime import build_runtime

NUM_SAMPLES = 1_000
"""Samples that an evaluation writes to count the new ones: their share is right to 3% or better."""


def count_new(loaded: Loaded, dataset: Dataset) -> int:
    """Return how many of `NUM_SAMPLES` samples are items, and not those of the training split.

    They are sampled by the run's own parameters and the seeds 0, 1, ... An item that does not end
    within `sample.max_new_tokens` is cut off there.
    """
    known = training_items(dataset) | {""}
    runtime = build_runtime(loaded.model)
    params = loaded.config.sample.params()
    texts = sample_texts(runtime, loaded.tokenizer, "", params, range(NUM_SAMPLES))
    return sum(text not in known for text in texts)
