import pytest

from gpt.accounting.flops import decode_flops
from gpt.accounting.published import PUBLISHED
from gpt.accounting.roofline import DecodeBound, Machine, decode_bounds
from gpt.cache import KVCache
from gpt.model import GPT
from tiny import tiny_config

A100 = Machine(bandwidth=2000e9, matmul_rate=312e12)


def test_the_slower_of_the_two_binds() -> None:
    machine = Machine(bandwidth=10, matmul_rate=40)
    memory, edge, arithmetic = (DecodeBound(2, 15, 5, flops, machine) for flops in (40, 80, 160))
    assert [bound.seconds for bound in (memory, edge, arithmetic)] == [2, 2, 4]
    assert [bound.intensity for bound in (memory, edge, arithmetic)] == [2, 4, 8]
    assert (memory.limit, arithmetic.limit) == ("memory", "arithmetic")
    assert arithmetic.tokens_per_second == 0.5


def test_rows_share_the_weights_and_nothing_else() -> None:
    config = tiny_config(n_kv_head=2, position="rope")
    one, eight = decode_bounds(config, (1, 8), 10, "bf16", A100)
    assert one.weight_bytes == eight.weight_bytes == 2 * sum(p.numel() for p in GPT(config).parameters())
    assert one.cache_bytes == KVCache(config, 1, capacity=10, kv_dtype="bf16").nbytes
    assert eight.cache_bytes == 8 * one.cache_bytes
    assert eight.flops == 8 * one.flops == decode_flops(config, 8, 10)


def test_llama_2_in_half_precision_on_an_a100() -> None:
    (bound,) = decode_bounds(PUBLISHED["llama-2-7b"], (1,), 1, "fp16", A100)
    assert bound.weight_bytes == 2 * (6_738_415_616 - 32000 * 4096)  # the embedding is looked up, not read
    assert bound.tokens_per_second == pytest.approx(151, abs=1)
    assert A100.ridge == 156
