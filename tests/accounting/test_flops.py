from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpt.accounting.flops import flops_by_part, forward_flops, matmul_parameters, run_flops, training_flops
from gpt.accounting.generation_flops import GenerationFlops, decode_flops
from gpt.cache.kv_cache import KVCache
from gpt.config import Config, TrainConfig
from gpt.model import GPT
from inspection.variants import every_variant
from tiny import tiny_config


def counted(work: Callable[[], object]) -> FlopCounterMode:
    counter = FlopCounterMode(display=False)
    with counter:
        work()
    return counter


@every_variant
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 16)])
def test_each_pass_of_training_is_what_torch_counts(variant: dict[str, object], batch: int, length: int) -> None:
    config = tiny_config(**{**variant, "attention": "reference"})
    model, idx = GPT(config), torch.zeros(batch, length, dtype=torch.long)
    counter = counted(lambda: model(idx))
    assert forward_flops(config, batch, length) == counter.get_total_flops()
    parts = flops_by_part(config, batch, length, length)
    assert parts["head"] == sum(counter.get_flop_counts()["GPT.lm_head"].values())
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert matmul_parameters(config) == sum(layer.weight.numel() for layer in linear)
    loss = model(idx).sum()
    backward = counted(loss.backward).get_total_flops()
    assert training_flops(config, batch, length) == sum(parts.values()) + backward


@torch.no_grad()
@every_variant
def test_every_pass_of_generating_is_what_torch_counts(variant: dict[str, object]) -> None:
    prompt, new, batch = 5, 4, 3
    config = tiny_config(**{**variant, "attention": "reference"})
    model, cache = GPT(config).eval(), KVCache(config, batch)
    generation = GenerationFlops(config, prompt, new)
    idx = torch.zeros(batch, prompt + new, dtype=torch.long)

    def flops(begin: int, end: int, cache: KVCache | None) -> int:
        return counted(lambda: model(idx[:, begin:end], cache=cache)).get_total_flops()

    assert batch * generation.prefill == flops(0, prompt, cache)
    assert (generation.naive_positions, generation.cached_positions) == (6 + 7 + 8 + 9, 9)
    naive, cached = 0, generation.prefill
    for step in range(1, new + 1):
        length = prompt + step
        assert batch * generation.cached_step(step) == flops(length - 1, length, cache)
        assert decode_flops(config, batch, length) == batch * generation.cached_step(step)
        assert batch * generation.naive_step(step) == flops(0, length, None)
        naive, cached = naive + generation.naive_step(step), cached + generation.cached_step(step)
    assert (generation.naive, generation.cached) == (naive, cached)


def test_a_run_costs_its_steps() -> None:
    model = tiny_config()
    train = TrainConfig(batch_size=3, grad_accum_steps=2, max_steps=10)
    assert run_flops(Config(model=model, train=train)) == 10 * training_flops(model, 6, 16)


def test_steps_of_short_sequences_cost_what_torch_counts() -> None:
    model = tiny_config(attention="reference")
    train = TrainConfig(batch_size=3, grad_accum_steps=2, max_steps=10, length_warmup=(0.4,))
    net, idx = GPT(model), torch.zeros(6, 16, dtype=torch.long)
    short, whole = (counted(lambda n=n: net(idx.view(-1, n)).sum().backward()).get_total_flops() for n in (8, 16))
    assert short < whole
    assert run_flops(Config(model=model, train=train)) == 4 * short + 6 * whole  # 40% of ten
