import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpt.cache.kv_cache import KVCache
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.system.errors import InputError
from tiny import tiny_config
from variants import CHOICES, VARIANTS, keys_of, name_of

LENGTH = 8
LAYERS = ("attn.c_q", "attn.c_k", "attn.c_v", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=name_of)


def build(variant: tuple[Any, ...], **changes: object) -> GPT:
    """A model in eval mode whose weights are large enough for every part to matter."""
    model = GPT(tiny_config(**keys_of(variant), **changes)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.15)
    return model


def random_ids(batch: int, length: int) -> Tensor:
    return torch.randint(23, (batch, length))


def test_any_two_choices_meet_in_a_variant() -> None:
    keys = ModelConfig.model_json_schema()["properties"]
    words = {name: tuple(keys[name]["enum"]) for name in ("position", "norm", "mlp", "attention")}
    options = words | {"n_kv_head": (4, 2, 1)}
    for (first, one), (second, other) in itertools.combinations(enumerate(CHOICES), 2):
        met = {(variant[first], variant[second]) for variant in VARIANTS}
        assert met == set(itertools.product(options.get(one, (True, False)), options.get(other, (True, False))))


@every_variant
def test_logits_have_a_gradient_at_their_token_and_before_and_exactly_none_after(variant: tuple[Any, ...]) -> None:
    model, embedded = build(variant), []
    model.wte.register_forward_hook(lambda _, __, x: embedded.append(x))
    logits = model(random_ids(1, LENGTH))
    for i in range(LENGTH):
        (gradient,) = torch.autograd.grad(logits[0, i, :3].sum(), embedded, retain_graph=True)
        reached = (gradient[0] != 0).any(dim=-1)
        assert reached.tolist() == [j <= i for j in range(LENGTH)]


@every_variant
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_for_the_tokens(variant: tuple[Any, ...], side: str) -> None:
    model = build(variant)
    rows = [random_ids(1, length)[0] for length in (5, 8, 1, 3)]
    idx, real = torch.zeros(4, 8, dtype=torch.long), torch.zeros(4, 8, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        place = slice(0, len(tokens)) if side == "right" else slice(8 - len(tokens), 8)
        idx[row, place], real[row, place] = tokens, True
    logits = model(idx, real)
    assert logits.isfinite().all()
    for row, tokens in enumerate(rows):
        torch.testing.assert_close(logits[row][real[row]], model(tokens[None])[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(model(idx + 20 * ~real, real)[real], logits[real], rtol=0, atol=1e-5)
    logits[real].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_a_row_that_is_all_padding_is_finite_and_leaves_the_others_alone(attention: str) -> None:
    model, idx = GPT(tiny_config(attention=attention)).eval(), random_ids(2, LENGTH)
    logits = model(idx, torch.tensor([[True], [False]]).expand(2, LENGTH))
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:1], model(idx[:1]), rtol=0, atol=1e-5)


@every_variant
@torch.inference_mode()
def test_a_sequence_in_pieces_with_a_cache_has_the_logits_of_the_whole(variant: tuple[Any, ...]) -> None:
    model, idx = build(variant), random_ids(2, LENGTH)
    cache = KVCache(model.config, 2)
    in_pieces = torch.cat([model(piece, cache=cache) for piece in idx.split([3, 1, 1, 2, 1], dim=1)], dim=1)
    torch.testing.assert_close(in_pieces, model(idx), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("idx", "words"),
    [
        (torch.tensor([[0, -1, 3]]), ["token id -1 ", "23 ids", "0 to 22"]),
        (torch.tensor([[0, 23, 3]]), ["token id 23 ", "23 ids", "0 to 22"]),
        (torch.zeros(2, 17, dtype=torch.long), ["17 tokens", "block_size 16"]),
        (torch.zeros(4, dtype=torch.long), ["(batch, time)", "(4,)"]),
        (torch.zeros(1, 2, 3, dtype=torch.long), ["(batch, time)", "(1, 2, 3)"]),
    ],
)
def test_ids_that_do_not_fit_are_refused_with_the_numbers(tiny_model: GPT, idx: Tensor, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        tiny_model(idx)
    assert all(word in str(caught.value) for word in words)
    assert isinstance(caught.value, ValueError)


@every_variant
def test_logits_are_float32_under_bfloat16_and_close(variant: tuple[Any, ...]) -> None:
    model, idx = build(variant), random_ids(2, LENGTH)
    with torch.no_grad():
        expected = model(idx)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(idx)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, expected)
    assert (logits - expected).abs().max() < 0.1 * expected.std()


@every_variant
def test_float64_agrees_with_float32(variant: tuple[Any, ...]) -> None:
    model, idx = build(variant), random_ids(2, LENGTH)
    expected = model(idx)
    blocks: list[Tensor] = []
    model.double().ln_f.register_forward_hook(lambda _, __, x: blocks.append(x))
    torch.testing.assert_close(model(idx), expected, rtol=0, atol=1e-4)
    assert blocks[0].dtype == torch.float64


def test_tied_weights_share_storage_also_after_loading_converting_and_stepping() -> None:
    tied, untied = GPT(tiny_config(tie_weights=True)), GPT(tiny_config(tie_weights=False))
    assert untied.lm_head.weight.data_ptr() != untied.wte.weight.data_ptr()
    assert parameters(untied) - parameters(tied) == 23 * 32
    tied.load_state_dict(GPT(tiny_config(tie_weights=True)).state_dict())
    tied.double().float()
    tied(random_ids(1, 4)).logsumexp(dim=-1).sum().backward()
    torch.optim.SGD(tied.parameters(), lr=0.1).step()
    assert tied.lm_head.weight.data_ptr() == tied.wte.weight.data_ptr()


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_those_of_llama_3_under_the_names_of_gpt_2() -> None:
    shape = {"vocab_size": 128256, "mlp_width": 14336, "block_size": 8192, "n_kv_head": 8, "tie_weights": False}
    with torch.device("meta"):
        llama = GPT(
            ModelConfig(n_layer=32, n_head=32, n_embd=4096, norm="rmsnorm", position="rope", mlp="swiglu", **shape)
        )
    assert parameters(llama) == 8_030_261_248
    assert parameters(llama.h) == 32 * 218_112_000
    model = GPT(tiny_config(n_layer=1, bias=True, tie_weights=False))
    block = [f"{part}.{kind}" for part in (*LAYERS, "ln_1", "ln_2") for kind in ("weight", "bias")]
    around = ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias", "lm_head.weight"]
    assert {name for name, _ in model.named_parameters()} == {*around, *(f"h.0.{name}" for name in block)}


@every_variant
def test_a_state_dict_holds_parameters_and_no_tables(variant: tuple[Any, ...]) -> None:
    model = build(variant)
    assert model.state_dict().keys() == {name for name, _ in model.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("attention", ["reference", "sdpa", "auto"])
def test_dropout_makes_training_random_and_evaluation_not(attention: str) -> None:
    model, idx = GPT(tiny_config(dropout=0.5, attention=attention)), random_ids(1, LENGTH)
    assert not torch.equal(model(idx), model(idx))
    model.eval()
    assert torch.equal(model(idx), model(idx))
    without = GPT(tiny_config(attention=attention))
    without.load_state_dict(model.state_dict())
    assert torch.equal(model(idx), without(idx))


def test_vector_math_is_first_called_on_one_element() -> None:
    class Calls(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.elements: list[int] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket in (torch.ops.aten.cos, torch.ops.aten.sin, torch.ops.aten.tanh):
                self.elements.append(args[0].numel())
            return func(*args, **(kwargs or {}))

    with Calls() as calls:
        GPT(tiny_config(position="rope"))
    assert calls.elements[0] == 1
    assert max(calls.elements) > 1
