"""What nanoGPT leaves behind."""

from pathlib import Path

import pytest
import torch

from benchmarks.nanogpt import COMPILED, OUT, import_nanogpt, load_nanogpt


@pytest.mark.parametrize("prefix", ["", COMPILED])
def test_a_checkpoint_is_read_whether_its_model_was_compiled_or_not(checkout: Path, prefix: str) -> None:
    module, shape = import_nanogpt(checkout), {"n_embd": 8, "vocab_size": 11, "block_size": 64}
    model = module.GPT(module.GPTConfig(**shape))
    weights = {prefix + name: value for name, value in model.state_dict().items()}
    (checkout / OUT).mkdir()
    torch.save({"model": weights, "model_args": shape}, checkout / OUT / "ckpt.pt")
    idx = torch.arange(5)[None]
    assert torch.equal(load_nanogpt(checkout)(idx), model(idx, idx)[0])
