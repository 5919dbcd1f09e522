import pytest

from gpt.model import GPT
from gpt.model.meta import meta_device
from tiny import tiny_config


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
def test_a_model_without_memory_has_the_same_tensors(position: str) -> None:
    config = tiny_config(position=position, bias=True, norm="rmsnorm", qk_norm=True, tie_weights=False)
    whole = GPT(config)
    with meta_device():
        meta_model = GPT(config)
    for kind in ("named_parameters", "named_buffers"):
        found, expected = dict(getattr(meta_model, kind)()), dict(getattr(whole, kind)())
        assert {name: (t.shape, t.dtype) for name, t in found.items()} == {
            name: (t.shape, t.dtype) for name, t in expected.items()
        }
        assert all(tensor.is_meta for tensor in found.values())


def test_sizes_that_no_memory_has_cost_nothing() -> None:
    with meta_device():
        assert GPT(tiny_config(position="rope", block_size=2**40)).rotation.cos.shape == (2**40, 8)
