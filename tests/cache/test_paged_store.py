"""A model that reads its keys and values from scattered blocks gives the logits of one without a cache."""

import pytest
import torch

from gpt.cache.paged_store import PagedStore, PagedView
from tiny import sharp_model


@torch.inference_mode()
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
@pytest.mark.parametrize("block_size", [1, 4, 5])
def test_logits_from_scattered_blocks_are_those_of_the_whole_sequence(position: str, block_size: int) -> None:
    model = sharp_model(std=0.25, position=position, n_kv_head=2)
    idx = torch.randint(23, (2, 16))
    store = PagedStore(model.config, 40, block_size, torch.float32, torch.device("cpu"))
    store.keys.fill_(torch.nan)  # what is in blocks that nobody has written must not count
    store.values.fill_(torch.nan)
    order = torch.randperm(40).tolist()
    tables = [order[:16], order[16:32]]
    for row, length in enumerate((7, 3)):  # two prompts of different lengths, each in two chunks
        for start, end in ((0, 2), (2, length)):
            model(idx[row : row + 1, start:end], cache=PagedView(store, [tables[row]], [start], end - start))
    stored = [7, 3]
    for _ in range(9):
        new = torch.stack([idx[row, at : at + 1] for row, at in enumerate(stored)])
        logits = model(new, cache=PagedView(store, tables, stored, 1))
        for row, at in enumerate(stored):
            expected = model(idx[row : row + 1, : at + 1])[0, -1]
            torch.testing.assert_close(logits[row, 0], expected, rtol=1e-5, atol=5e-5)
        stored = [at + 1 for at in stored]
