import pytest

from gpt.accounting.parameters import COMPONENTS, ParameterCount, count_parameters
from gpt.model import GPT
from inspection.variants import every_variant
from tiny import tiny_config


def by_name(count: ParameterCount) -> dict[str, int]:
    return {part.name: part.count for part in count.components}


@every_variant
def test_components_and_tensors_add_up_to_the_real_model(variant: dict[str, object]) -> None:
    config = tiny_config(**variant)
    count, model = count_parameters(config), GPT(config)
    assert count.total == sum(parameter.numel() for parameter in model.parameters())
    assert count.total == sum(part.count for part in count.components) == sum(each.count for each in count.tensors)
    assert sum(part.share for part in count.components) == pytest.approx(100)
    assert {each.name: each.shape for each in count.tensors} == {n: tuple(p.shape) for n, p in model.named_parameters()}
    outside = {part.name for part in count.components if part.per_block is None}
    assert outside == {"token embedding", "added positions", "final norm", "head"} < set(COMPONENTS)
    assert count.in_blocks == sum(parameter.numel() for parameter in model.h.parameters())
    per_block = sum(part.per_block for part in count.components if part.per_block is not None)
    assert per_block == sum(parameter.numel() for parameter in model.h[0].parameters())
    assert count.buffers == sum(buffer.numel() for buffer in model.buffers())


def test_every_component_by_hand() -> None:
    config = tiny_config(n_layer=3, n_head=2, n_kv_head=1, n_embd=8, vocab_size=5, block_size=7, mlp_width=6, bias=True)
    assert by_name(count_parameters(config)) == {
        "token embedding": 5 * 8,
        "added positions": 7 * 8,
        "attention, queries": 3 * 8 * 8,
        "attention, keys": 3 * 8 * 4,
        "attention, values": 3 * 8 * 4,
        "attention, projection": 3 * 8 * 8,
        "attention, biases": 3 * (8 + 4 + 4 + 8),
        "feed-forward, weights": 3 * 2 * 8 * 6,
        "feed-forward, biases": 3 * (6 + 8),
        "norms of the blocks": 3 * 2 * (8 + 8),
        "final norm": 8 + 8,
        "head": 0,
    }


def test_a_tied_head_is_no_parameter_of_its_own() -> None:
    tied, untied = (count_parameters(tiny_config(tie_weights=tie)) for tie in (True, False))
    assert tied.tied
    assert not untied.tied
    assert untied.total - tied.total == by_name(untied)["head"] == 23 * 32
