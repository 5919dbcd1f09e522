"""Every tensor of one small model, measured as it passes: 7 tokens, 64 wide, 4 heads, 20,000 ids."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gpt.config import load_config
from gpt.model import GPT

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "reference_shapes.yaml"


class Scores(TorchFunctionMode):
    """Keeps what `masked_fill` is called with: the scores, and where they may be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.masked_fill:
            self.seen.append((args[0], ~args[1]))
        return func(*args, **(kwargs or {}))


class Trace:
    """One forward pass: what goes into and comes out of every module, and the attention scores and masks."""

    def __init__(self, model: GPT, idx: Tensor) -> None:
        self.inputs: dict[str, tuple[Tensor, ...]] = {}
        self.outputs: dict[str, Tensor] = {}
        for name, module in model.named_modules():
            module.register_forward_hook(self._keep(name))
        with Scores() as scores, torch.no_grad():
            self.logits = model(idx)
        self.scores = scores.seen

    def _keep(self, name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.inputs[name], self.outputs[name] = args, output

        return hook


@pytest.fixture(scope="module")
def model() -> GPT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT(load_config(CONFIG).config.model).eval()


@pytest.fixture(scope="module")
def idx() -> Tensor:
    return torch.tensor([[17, 4, 19_999, 0, 256, 4, 12_345]])


@pytest.fixture(scope="module")
def trace(model: GPT, idx: Tensor) -> Trace:
    return Trace(model, idx)


both_blocks = pytest.mark.parametrize("block", [0, 1])


def test_every_weight_has_its_shape(model: GPT) -> None:
    """torch stores a matrix as (out, in)."""
    block = {
        "ln_1.weight": (64,),
        "ln_1.bias": (64,),
        "attn.c_q.weight": (64, 64),
        "attn.c_q.bias": (64,),
        "attn.c_k.weight": (64, 64),
        "attn.c_k.bias": (64,),
        "attn.c_v.weight": (64, 64),
        "attn.c_v.bias": (64,),
        "attn.c_proj.weight": (64, 64),
        "attn.c_proj.bias": (64,),
        "ln_2.weight": (64,),
        "ln_2.bias": (64,),
        "mlp.c_fc.weight": (256, 64),
        "mlp.c_fc.bias": (256,),
        "mlp.c_proj.weight": (64, 256),
        "mlp.c_proj.bias": (64,),
    }
    around = {
        "wte.weight": (20_000, 64),
        "wpe.weight": (32, 64),
        "ln_f.weight": (64,),
        "ln_f.bias": (64,),
        "lm_head.weight": (20_000, 64),
    }
    expected = around | {f"h.{index}.{name}": shape for index in (0, 1) for name, shape in block.items()}
    assert {name: tuple(parameter.shape) for name, parameter in model.named_parameters()} == expected


def test_ids_become_vectors_with_positions_added(model: GPT, trace: Trace, idx: Tensor) -> None:
    (ids,) = trace.inputs["wte"]
    embedded, positions = trace.inputs["wpe"]
    assert ids.shape == (1, 7)
    assert ids.dtype == torch.int64
    assert embedded.shape == (1, 7, 64)
    assert torch.equal(embedded[0, 2], model.wte.weight[19_999])
    assert positions.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert model.wpe.weight[positions].shape == (7, 64)
    added = trace.outputs["wpe"]
    assert added.shape == (1, 7, 64)
    torch.testing.assert_close(added - embedded, model.wpe.weight[None, :7], rtol=0, atol=1e-7)


@both_blocks
def test_attention_projects_and_splits_heads(trace: Trace, block: int) -> None:
    for name, heads in zip("qkv", trace.inputs[f"h.{block}.attn.core"], strict=False):
        flat = trace.outputs[f"h.{block}.attn.c_{name}"]
        assert flat.shape == (1, 7, 64)
        assert heads.transpose(1, 2).shape == (1, 7, 4, 16)
        assert heads.shape == (1, 4, 7, 16)
        for head in range(4):
            assert torch.equal(heads[0, head], flat[0, :, 16 * head : 16 * (head + 1)])


@both_blocks
def test_scores_and_mask_are_a_square_of_tokens(trace: Trace, block: int) -> None:
    q, k = trace.inputs[f"h.{block}.attn.core"][:2]
    scores, mask = trace.scores[block]
    assert (q[0, 0].shape, k[0, 0].T.shape) == ((7, 16), (16, 7))
    assert scores.shape == (1, 4, 7, 7)
    assert mask.shape == (1, 1, 7, 7)
    assert mask[0, 0].tolist() == [[j <= i for j in range(7)] for i in range(7)]
    torch.testing.assert_close(scores[0, 2, 5, 3], q[0, 2, 5] @ k[0, 2, 3] / 4)


@both_blocks
def test_weights_are_distributions_of_a_query_over_itself_and_earlier_keys(trace: Trace, block: int) -> None:
    (weights,) = trace.inputs[f"h.{block}.attn.core.dropout"]
    assert weights.shape == (1, 4, 7, 7)
    assert weights[0, 0].shape == (7, 7)
    assert weights[0, :, -1].shape == (4, 7)
    assert weights[0, 0, 3].shape == (7,)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 4, 7))
    for i in range(7):
        for j in range(7):
            assert (weights[0, :, i, j] > 0).all() if j <= i else (weights[0, :, i, j] == 0).all()


@both_blocks
def test_weights_index_the_query_first_and_the_key_second(trace: Trace, block: int) -> None:
    (weights,), v = trace.inputs[f"h.{block}.attn.core.dropout"], trace.inputs[f"h.{block}.attn.core"][2]
    for head in range(4):
        for i in range(7):
            mixed = sum(weights[0, head, i, j] * v[0, head, j] for j in range(i + 1))
            torch.testing.assert_close(trace.outputs[f"h.{block}.attn.core"][0, head, i], mixed, rtol=0, atol=1e-6)


@both_blocks
def test_heads_are_concatenated_and_projected(trace: Trace, block: int) -> None:
    heads = trace.outputs[f"h.{block}.attn.core"]
    (joined,) = trace.inputs[f"h.{block}.attn.c_proj"]
    assert heads[0, 0].shape == (7, 16)
    assert heads.shape == (1, 4, 7, 16)
    assert joined.shape == (1, 7, 64)
    for head in range(4):
        assert torch.equal(joined[0, :, 16 * head : 16 * (head + 1)], heads[0, head])
    assert trace.outputs[f"h.{block}.attn.c_proj"].shape == (1, 7, 64)
    assert trace.outputs[f"h.{block}.attn"].shape == (1, 7, 64)


@pytest.mark.parametrize("name", ["h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f"])
def test_each_norm_keeps_the_shape_and_normalizes_every_token(trace: Trace, name: str) -> None:
    normed = trace.outputs[name]
    assert trace.inputs[name][0].shape == normed.shape == (1, 7, 64)
    torch.testing.assert_close(normed.mean(dim=-1), torch.zeros(1, 7), rtol=0, atol=1e-5)
    torch.testing.assert_close(normed.var(dim=-1, correction=0), torch.ones(1, 7), rtol=0, atol=0.05)


@both_blocks
def test_feed_forward_expands_and_projects_back(trace: Trace, block: int) -> None:
    assert trace.inputs[f"h.{block}.mlp.c_fc"][0].shape == (1, 7, 64)
    assert trace.outputs[f"h.{block}.mlp.c_fc"].shape == (1, 7, 256)
    assert trace.inputs[f"h.{block}.mlp.c_proj"][0].shape == (1, 7, 256)
    assert trace.outputs[f"h.{block}.mlp.c_proj"].shape == (1, 7, 64)


@both_blocks
def test_the_residual_stream_keeps_its_shape_and_adds_up(trace: Trace, block: int) -> None:
    before, after = trace.inputs[f"h.{block}"][0], trace.outputs[f"h.{block}"]
    assert before.shape == after.shape == (1, 7, 64)
    middle = before + trace.outputs[f"h.{block}.attn"]
    assert torch.equal(trace.inputs[f"h.{block}.ln_2"][0], middle)
    assert torch.equal(after, middle + trace.outputs[f"h.{block}.mlp"])


def test_every_token_has_a_logit_for_every_id(trace: Trace) -> None:
    assert trace.inputs["lm_head"][0].shape == (1, 7, 64)
    assert trace.logits.shape == (1, 7, 20_000)
    assert trace.logits.isfinite().all()
