"""Parameters and FLOPs against real models, torch's counter and published totals."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpt.config import Config, TrainConfig
from gpt.extras.accounting.generation_flops import GenerationFlops, decode_flops
from gpt.extras.accounting.parameters import count_parameters
from gpt.extras.accounting.published import find_published
from gpt.generation.kv_cache import KVCache
from gpt.model import GPT
from gpt.model.flops import (
    flops_by_part,
    forward_flops,
    matmul_parameters,
    run_flops,
    training_flops,
)
from gpt.system.errors import ConfigError
from inspection.variants import every_variant
from tiny import tiny_config


@every_variant
def test_parameters_add_up_to_the_real_model(variant: dict[str, object]) -> None:
    config = tiny_config(**variant)
    count = count_parameters(config)
    model = GPT(config)
    assert count.total == sum(parameter.numel() for parameter in model.parameters())
    assert (
        count.total
        == sum(part.count for part in count.components)
        == sum(each.count for each in count.tensors)
    )
    assert sum(part.share for part in count.components) == pytest.approx(100)
    assert {each.name: each.shape for each in count.tensors} == {
        n: tuple(p.shape) for n, p in model.named_parameters()
    }
    outside = {part.name for part in count.components if part.per_block is None}
    assert outside == {"token embedding", "added positions", "final norm", "head"}
    assert count.in_blocks == sum(parameter.numel() for parameter in model.h.parameters())
    per_block = sum(part.per_block for part in count.components if part.per_block is not None)
    assert per_block == sum(parameter.numel() for parameter in model.h[0].parameters())
    assert count.buffers == sum(buffer.numel() for buffer in model.buffers())
    assert count.tied == config.tie_weights


@pytest.mark.parametrize(
    ("name", "changes", "total"),
    [
        ("gpt2", {}, 124_439_808),
        ("gpt2-medium", {}, 354_823_168),
        ("gpt2-large", {}, 774_030_080),
        ("gpt2-xl", {}, 1_557_611_200),
        ("llama-2-7b", {}, 6_738_415_616),
        ("llama-2-7b", {"tie_weights": True}, 6_607_343_616),
        ("llama-3-8b", {}, 8_030_261_248),
    ],
)
def test_published_models_have_their_published_totals(
    name: str, changes: dict[str, object], total: int
) -> None:
    assert count_parameters(find_published(name).model_copy(update=changes)).total == total


def test_published_model_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'xyz'; there are gpt2, gpt2-medium, .*llama-3-8b"):
        find_published("xyz")


def counted(work: Callable[[], object]) -> FlopCounterMode:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter


@every_variant
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 16)])
def test_training_flops_are_what_torch_counts(
    variant: dict[str, object], batch: int, length: int
) -> None:
    config = tiny_config(**{**variant, "attention": "reference"})
    model = GPT(config)
    idx = torch.zeros(batch, length, dtype=torch.long)
    counter = counted(lambda: model(idx))
    assert forward_flops(config, batch, length) == counter.get_total_flops()
    parts = flops_by_part(config, batch, length, length)
    assert parts["head"] == sum(counter.get_flop_counts()["GPT.lm_head"].values())
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert matmul_parameters(config) == sum(layer.weight.numel() for layer in linear)
    backward = counted(model(idx).sum().backward).get_total_flops()
    assert training_flops(config, batch, length) == sum(parts.values()) + backward


@torch.no_grad()
@every_variant
def test_generation_flops_are_what_torch_counts(variant: dict[str, object]) -> None:
    prompt = 5
    new = 4
    batch = 3
    config = tiny_config(**{**variant, "attention": "reference"})
    model = GPT(config).eval()
    cache = KVCache(config, batch)
    generation = GenerationFlops(config, prompt, new)
    idx = torch.zeros(batch, prompt + new, dtype=torch.long)

    def flops(begin: int, end: int, cache: KVCache | None) -> int:
        return counted(lambda: model(idx[:, begin:end], cache=cache)).get_total_flops()

    assert batch * generation.prefill == flops(0, prompt, cache)
    assert (generation.naive_positions, generation.cached_positions) == (6 + 7 + 8 + 9, 9)
    naive = 0
    cached = generation.prefill
    for step in range(1, new + 1):
        length = prompt + step
        assert batch * generation.cached_step(step) == flops(length - 1, length, cache)
        assert decode_flops(config, batch, length) == batch * generation.cached_step(step)
        assert batch * generation.naive_step(step) == flops(0, length, None)
        naive, cached = naive + generation.naive_step(step), cached + generation.cached_step(step)
    assert (generation.naive, generation.cached) == (naive, cached)


def test_run_costs_its_short_and_its_whole_steps() -> None:
    model = tiny_config(attention="reference")
    train = TrainConfig(batch_size=3, grad_accum_steps=2, max_steps=10, length_warmup=(0.4,))
    net = GPT(model)
    idx = torch.zeros(6, 16, dtype=torch.long)
    short, whole = (
        counted(lambda n=n: net(idx.view(-1, n)).sum().backward()).get_total_flops()
        for n in (8, 16)
    )
    assert short < whole
    assert run_flops(Config(model=model, train=train)) == 4 * short + 6 * whole  # 40% of ten
