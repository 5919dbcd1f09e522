import itertools
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpt.config import ModelConfig
from gpt.extras.inspection.tracing.activation_cache import run_with_cache
from gpt.generation.kv_cache import KVCache
from gpt.generation.paged_store import PagedStore
from gpt.model import GPT, eval_mode
from gpt.native.coverage import uncovered_option
from gpt.native.decoding.c_structs import ACTIVATIONS
from gpt.system.device import meta_device
from gpt.system.errors import InputError
from plugin_files import plugin_of, unload
from tiny import sharp_model, tiny_config
from variants import CHOICES, PYTORCH_VARIANTS, VARIANTS, keys_of, name_of

LENGTH = 8
ALIBI = [
    ("own_alibi", "layernorm", "gelu", 2, False, False, False, core)
    for core in ("auto", "reference", "sdpa")
]
"""Of a plugin, with a bias on the scores of attention."""
CLOSE = {"rtol": 1e-5, "atol": 5e-5}


@pytest.fixture(params=[*VARIANTS, *PYTORCH_VARIANTS, *ALIBI], ids=name_of)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GPT]:
    if request.param in ALIBI:
        plugin_of(tmp_path)
    yield sharp_model(std=0.15, **keys_of(request.param))
    unload()


def random_ids(batch: int, length: int = LENGTH) -> Tensor:
    return torch.randint(23, (batch, length))


def has_kernel(name: str, value: object) -> bool:
    """Whether the native kernels know a value of a key of `model`."""
    return uncovered_option(tiny_config(**{name: value}), ACTIVATIONS) is None


def test_any_two_choices_meet_in_a_variant() -> None:
    keys = ModelConfig.model_json_schema()["properties"]
    words = {name: tuple(keys[name]["enum"]) for name in ("position", "norm", "mlp", "attention")}
    options = words | {"n_kv_head": (4, 2, 1)}
    for (first, one), (second, other) in itertools.combinations(enumerate(CHOICES), 2):
        met = {(variant[first], variant[second]) for variant in VARIANTS}
        values = [options.get(name, (True, False)) for name in (one, other)]
        expected = {
            pair
            for pair in itertools.product(*values)
            if has_kernel(one, pair[0]) and has_kernel(other, pair[1])
        }
        assert met == expected


def test_each_choice_without_a_kernel_is_in_a_variant() -> None:
    for index, name in enumerate(("position", "norm", "mlp")):
        values = ModelConfig.model_json_schema()["properties"][name]["enum"]
        without_kernel = {value for value in values if not has_kernel(name, value)}
        shown = {variant[index] for variant in PYTORCH_VARIANTS}
        assert without_kernel <= shown


def test_logits_depend_on_earlier_tokens_and_their_order(model: GPT) -> None:
    embedded: list[Tensor] = []
    model.wte.register_forward_hook(lambda _, __, x: embedded.append(x))
    idx = torch.arange(LENGTH)[None]
    logits = model(idx)
    for i in range(LENGTH):
        (gradient,) = torch.autograd.grad(logits[0, i, :3].sum(), embedded, retain_graph=True)
        assert (gradient[0] != 0).any(dim=-1).tolist() == [j <= i for j in range(LENGTH)]
    swapped = model(idx[:, [1, 0, *range(2, LENGTH)]])
    assert (swapped - logits)[0, -1].abs().max() > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_for_the_tokens(model: GPT, side: str) -> None:
    rows = [random_ids(1, length)[0] for length in (5, 8, 1, 3, 0)]  # the last is all padding
    idx = torch.zeros(5, 8, dtype=torch.long)
    real = torch.zeros(5, 8, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        place = slice(0, len(tokens)) if side == "right" else slice(8 - len(tokens), 8)
        idx[row, place] = tokens
        real[row, place] = True
    logits = model(idx, real)
    assert logits.isfinite().all()
    for row, tokens in enumerate(rows[:-1]):
        torch.testing.assert_close(
            logits[row][real[row]], model(tokens[None])[0], rtol=0, atol=1e-5
        )
    torch.testing.assert_close(model(idx + 20 * ~real, real)[real], logits[real], rtol=0, atol=1e-5)
    assert torch.equal(model(idx, real.long()), logits)  # as tokenizers give it
    logits[real].sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all()
        for parameter in model.parameters()
    )


@torch.inference_mode()
def test_cache_gives_the_logits_of_the_whole_sequence(model: GPT) -> None:
    idx = random_ids(2)
    cache = KVCache(model.config, 2)
    in_pieces = torch.cat(
        [model(piece, cache=cache) for piece in idx.split([3, 1, 1, 2, 1], dim=1)], dim=1
    )
    torch.testing.assert_close(in_pieces, model(idx), rtol=0, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("block_size", [1, 5])
def test_scattered_blocks_give_the_logits_of_the_whole_sequence(
    model: GPT, block_size: int
) -> None:
    idx = random_ids(2, 16)
    store = PagedStore(model.config, 40, block_size, torch.float32, torch.device("cpu"))
    store.keys.fill_(torch.nan)  # what is in blocks that nobody has written must not count
    store.values.fill_(torch.nan)
    order = torch.randperm(40).tolist()
    tables = [order[:16], order[16:32]]
    stored = [7, 3]
    for row, length in enumerate(stored):  # two prompts of different lengths, each in two chunks
        for start, end in ((0, 2), (2, length)):
            model(
                idx[row : row + 1, start:end], cache=store.view([tables[row]], [start], end - start)
            )
    for _ in range(9):
        new = torch.stack([idx[row, at : at + 1] for row, at in enumerate(stored)])
        logits = model(new, cache=store.view(tables, stored, 1))
        expected = [model(idx[row : row + 1, : at + 1])[0, -1] for row, at in enumerate(stored)]
        torch.testing.assert_close(logits[:, 0], torch.stack(expected), **CLOSE)
        stored = [at + 1 for at in stored]


@pytest.mark.parametrize(
    ("idx", "message"),
    [
        (torch.tensor([[0, -1, 3]]), "token id -1 is outside .* 23 ids"),
        (torch.tensor([[0, 23, 3]]), "token id 23 is outside .* 23 ids"),
        (torch.zeros(2, 17, dtype=torch.long), "17 tokens .* block_size 16"),
        (torch.zeros(4, dtype=torch.long), r"\(batch, time\), got shape \(4,\)"),
        ([1, 2], r"must be a tensor, not a list; use torch.tensor\(\[ids\]\)"),
        ("It was", "must be a tensor, not a str"),
    ],
)
def test_ids_that_do_not_fit_are_refused(tiny_model: GPT, idx: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny_model(idx)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            torch.ones(2, 4, dtype=torch.long),
            r"must have the shape \(2, 5\) of the ids, got \(2, 4\)$",
        ),
        (torch.ones(5, dtype=torch.bool), r"must have the shape \(2, 5\) of the ids, got \(5,\)$"),
        (
            torch.ones(2, 1, 5, 5, dtype=torch.bool),
            r"must have the shape \(2, 5\) of the ids, got \(2, 1, 5, 5\)$",
        ),
        (torch.zeros(2, 5), "must be bool, or 0 and 1 as int64, not float32; use"),
    ],
)
def test_masks_that_do_not_fit_are_refused(tiny_model: GPT, mask: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=f"^attention_mask {message}"):
        tiny_model(random_ids(2, 5), mask)


# Torch warns that it has no fused kernel for attention under vmap.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_each_sequence_can_be_mapped_over_a_batch(model: GPT) -> None:
    idx = random_ids(3)
    parameters = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, weights, (row[None],))
        return logits.square().mean()

    together = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, idx)
    for number, row in enumerate(idx):
        alone = torch.autograd.grad(loss(parameters, row), list(parameters.values()))
        for name, gradient in zip(parameters, alone, strict=True):
            torch.testing.assert_close(together[name][number], gradient, **CLOSE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_pass_can_be_traced_and_takes_other_ids_then(model: GPT) -> None:
    traced = torch.jit.trace(model, (random_ids(2),))
    idx = random_ids(2)
    torch.testing.assert_close(traced(idx), model(idx))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_of_the_meta_device_gets_its_tables_with_memory(
    model: GPT, dtype: torch.dtype
) -> None:
    with torch.device("meta"):
        empty = GPT(model.config).to(dtype).eval()
    assert all(tensor.is_meta for tensor in [*empty.parameters(), *empty.buffers()])
    with patch("torch.empty_like", partial(torch.full_like, fill_value=math.nan)):
        empty.to_empty(device="cpu")
    loaded = empty.load_state_dict(model.to(dtype).state_dict())
    assert not loaded.missing_keys
    idx = random_ids(2)
    assert torch.equal(empty(idx), model(idx))


def test_logits_are_float32_and_close_in_all_types(model: GPT) -> None:
    idx = random_ids(2)
    expected = model(idx)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(idx)
    assert logits.dtype == torch.float32
    assert 0 < (logits - expected).abs().max() < 0.1 * expected.std()
    logits.square().mean().backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all()
        for parameter in model.parameters()
    )
    blocks: list[Tensor] = []
    model.double().ln_f.register_forward_hook(lambda _, __, x: blocks.append(x))
    torch.testing.assert_close(model(idx), expected, rtol=0, atol=1e-4)
    assert blocks[0].dtype == torch.float64


def test_tied_weights_share_storage_after_loading_and_stepping() -> None:
    tied = GPT(tiny_config(tie_weights=True))
    untied = GPT(tiny_config(tie_weights=False))
    assert untied.lm_head.weight.data_ptr() != untied.wte.weight.data_ptr()
    assert parameters(untied) - parameters(tied) == 23 * 32
    tied.load_state_dict(GPT(tiny_config(tie_weights=True)).state_dict())
    tied.double().float()
    tied(random_ids(1)).logsumexp(dim=-1).sum().backward()
    torch.optim.SGD(tied.parameters(), lr=0.1).step()
    assert tied.lm_head.weight.data_ptr() == tied.wte.weight.data_ptr()


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_llama_3s_under_the_names_of_gpt_2() -> None:
    shape = {
        "vocab_size": 128256,
        "mlp_width": 14336,
        "block_size": 8192,
        "n_kv_head": 8,
        "tie_weights": False,
    }
    kinds = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu"}
    with meta_device():
        llama = GPT(ModelConfig(n_layer=32, n_head=32, n_embd=4096, **kinds, **shape))
    assert parameters(llama) == 8_030_261_248
    model = GPT(tiny_config(n_layer=1, bias=True, tie_weights=False))
    layers = (
        "attn.c_q",
        "attn.c_k",
        "attn.c_v",
        "attn.c_proj",
        "mlp.c_fc",
        "mlp.c_proj",
        "ln_1",
        "ln_2",
    )
    block = [f"h.0.{part}.{kind}" for part in layers for kind in ("weight", "bias")]
    around = ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias", "lm_head.weight"]
    assert {name for name, _ in model.named_parameters()} == {*around, *block}


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("n_layer", [1, 3])
@pytest.mark.parametrize(
    "kind",
    [{}, {"mlp": "swiglu", "norm": "rmsnorm", "position": "rope", "qk_norm": True}],
    ids=["gpt2", "llama"],
)
def test_weights_begin_with_the_deviations_of_gpt2(
    kind: dict[str, Any], n_layer: int, tie_weights: bool
) -> None:
    sizes = {"n_layer": n_layer, "n_embd": 128, "vocab_size": 150, "block_size": 100}
    model = GPT(tiny_config(bias=True, tie_weights=tie_weights, **sizes, **kind))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert (parameter == (not name.endswith("bias"))).all(), name
        else:
            deviation = 0.02 / math.sqrt(2 * n_layer) if "c_proj" in name else 0.02
            assert parameter.std().item() == pytest.approx(deviation, rel=0.05), name
            assert abs(parameter.mean().item()) < 0.05 * deviation, name


@pytest.mark.parametrize("attention", ["reference", "sdpa", "auto"])
def test_dropout_makes_training_random_and_evaluation_not(attention: str) -> None:
    model = GPT(tiny_config(dropout=0.5, attention=attention))
    idx = random_ids(1)
    assert not torch.equal(model(idx), model(idx))
    without = GPT(tiny_config(attention=attention))
    without.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(idx), without(idx))


def test_eval_mode_is_that_of_every_module_and_is_left_as_it_was() -> None:
    model = GPT(tiny_config(dropout=0.5)).eval()
    model.h[1].train()
    modes = [module.training for module in model.modules()]
    with eval_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == modes


@torch.inference_mode()
@pytest.mark.parametrize("attention", ["auto", "reference", "sdpa"])
@pytest.mark.usefixtures("no_plugins")
def test_score_bias_lowers_scores_by_the_slope_of_their_head(
    tmp_path: Path, attention: str
) -> None:
    plugin_of(tmp_path)
    model = sharp_model(std=0.25, position="own_alibi", n_kv_head=2, attention=attention)
    idx = random_ids(2, 16)
    names = ["blocks.0.attn.hook_q", "blocks.0.attn.hook_k", "blocks.0.attn.hook_attn_scores"]
    logits, seen = run_with_cache(model, idx, names)
    q, k, scores = (seen[name][0] for name in names)
    for head, query, key in ((0, 5, 5), (0, 9, 2), (3, 15, 0), (2, 4, 3)):
        product = float(q[query, head] @ k[key, head // 2]) / 8**0.5
        expected = product - 2 ** (-2 * (head + 1)) * (query - key)
        assert scores[head, query, key].item() == pytest.approx(expected, abs=1e-5)
    assert scores[:, 3, 4:].eq(-torch.inf).all()
    torch.testing.assert_close(logits, model(idx), **CLOSE)


def test_vector_math_is_first_called_on_one_element() -> None:
    class Calls(TorchDispatchMode):
        elements: list[int] = []  # noqa: RUF012

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.overloadpacket in (torch.ops.aten.cos, torch.ops.aten.sin, torch.ops.aten.tanh):
                self.elements.append(args[0].numel())
            return func(*args, **(kwargs or {}))

    with Calls() as calls:
        GPT(tiny_config(position="rope"))
    assert calls.elements[0] == 1
    assert max(calls.elements) > 1


@pytest.mark.parametrize("tied", [True, False])
def test_configuration_tells_whether_the_head_is_tied(tied: bool) -> None:
    """peft takes the configuration as a dict, or calls `to_dict`, and reads these two keys."""
    config = GPT(tiny_config(tie_weights=tied)).config
    fields = config.to_dict()
    assert (fields["tie_word_embeddings"], fields["model_type"]) == (tied, "glassgpt")
    assert ModelConfig(**{name: fields[name] for name in ModelConfig.model_fields}) == config
