"""Training, texts and views on a CUDA device, against the CPU and against mathematics.

Weights of models that write are sharp, so that rounding decides nothing.
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import gpt
from cuda_device import no_synchronization, stepper_of
from gpt.config import SamplingParams
from gpt.data.batches import StepBatch
from gpt.extras.inspection.views.attention import attention_patterns
from gpt.extras.inspection.views.lens import logit_lens
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.generation.batch import Batch
from gpt.generation.beam import BeamOptions, beam_search
from gpt.generation.graph_runner import GraphRunner
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import NonFiniteError
from gpt.training.acceleration import compile_blocks
from gpt.training.graphed_step import GraphedStepper
from gpt.training.step import Stepper
from tiny import sharp_model, tiny_config

DEVICE = torch.device("cuda")
CPU = torch.device("cpu")
every_optimizer = pytest.mark.parametrize("name", ["adamw", "muon"])
every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def batch_of(seed: int, rows: int = 8) -> StepBatch:
    """Inputs, and targets that are a function of them."""
    inputs = torch.randint(23, (rows, 16), generator=torch.Generator().manual_seed(seed))
    return StepBatch(inputs, (inputs * 7 + 3) % 23)


@every_optimizer
def test_losses_are_those_of_the_cpu(name: str) -> None:
    model = GPT(tiny_config(position="rope", norm="rmsnorm", qk_norm=True))
    losses = []
    for place in (CPU, DEVICE):
        stepper = stepper_of(copy.deepcopy(model).to(place), place, name=name)
        losses.append(
            [float(stepper.step(i, 3e-3, [batch_of(i), batch_of(i + 50)]).loss) for i in range(20)]
        )
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(losses[1], losses[0], atol=2e-4 if name == "adamw" else 3e-2, rtol=0)


@every_type
@every_optimizer
def test_every_type_learns_and_no_step_waits(dtype: torch.dtype, name: str) -> None:
    stepper = stepper_of(GPT(tiny_config(dropout=0.05)).to(DEVICE), DEVICE, dtype, name=name)
    losses = []
    for number in range(120):
        with no_synchronization(DEVICE if number else CPU):  # the first one makes what stays
            losses.append(
                stepper.step(number, 1e-2, [batch_of(number), batch_of(number + 200)]).loss
            )
    stepper.check()
    assert float(losses[-1]) < 0.6 * float(losses[0])


@every_optimizer
def test_graphs_make_the_steps_of_plain_launches(name: str) -> None:
    """Of every length, before and after the end of multi-token prediction, at rates that change."""
    model = GPT(tiny_config(position="rope")).to(DEVICE)
    found = []
    for kind in (Stepper, GraphedStepper):
        stepper = stepper_of(copy.deepcopy(model), DEVICE, kind=kind, name=name)
        with patch.object(torch.cuda, "graph", wraps=torch.cuda.graph) as capture:
            for number in range(24):
                length = 8 if number < 6 else 16
                batches = [
                    batch_of(number + i).map(lambda ids, length=length: ids[:, :length])
                    for i in (0, 50)
                ]
                # a first step allocates what stays, and a second one is captured
                with no_synchronization(DEVICE if number not in (0, 1, 6, 7, 12, 13) else CPU):
                    result = stepper.step(number, 3e-3 / (1 + number), batches)
        found.append([result.loss, result.gradient_norm, *stepper.model.parameters()])
    assert capture.call_count == 3
    torch.testing.assert_close(
        found[1], found[0], atol=1e-4 if name == "adamw" else 1e-2, rtol=1e-3
    )
    stepper.model.wte.weight.data[0] = torch.nan
    before = [parameter.detach().clone() for parameter in stepper.model.parameters()]
    stepper.step(24, 1e-3, batches)
    assert all(
        torch.allclose(a, b, 0, 0, equal_nan=True)
        for a, b in zip(before, stepper.model.parameters(), strict=True)
    )
    with pytest.raises(NonFiniteError, match="at step 24"):
        stepper.check()


def test_graph_drops_something_else_at_every_step() -> None:
    stepper = stepper_of(GPT(tiny_config(dropout=0.5)).to(DEVICE), DEVICE, kind=GraphedStepper)
    results = [stepper.step(number, 0.0, [batch_of(0)]) for number in range(20, 26)]
    assert len({float(result.loss) for result in results}) == 6


@every_type
@every_optimizer
def test_state_that_went_through_the_cpu_continues(dtype: torch.dtype, name: str) -> None:
    stepper = stepper_of(GPT(tiny_config()).to(DEVICE), DEVICE, dtype, name=name)
    for number in range(3):
        stepper.step(number, 1e-3, [batch_of(number)])
    other = stepper_of(copy.deepcopy(stepper.model), DEVICE, dtype, name=name)
    for part in ("optimizer", "scaler"):
        state = getattr(stepper, part).state_dict()
        getattr(other, part).load_state_dict(
            tree_map_only(Tensor, lambda x: x.cpu().clone(), state)
        )
    for one in (stepper, other):
        one.step(3, 1e-3, [batch_of(3)])
    for mine, theirs in zip(stepper.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


@every_type
@every_optimizer
def test_step_that_is_not_finite_changes_nothing(dtype: torch.dtype, name: str) -> None:
    """Nor gradients of float16 that overflow, which lower the scale."""
    model = GPT(tiny_config()).to(DEVICE)
    stepper = stepper_of(model, DEVICE, dtype, name=name)
    stepper.step(0, 1e-3, [batch_of(0)])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    scale = stepper.scaler.get_scale()
    if dtype == torch.float16:
        handle = model.wte.weight.register_hook(lambda gradient: gradient * torch.inf)
    else:
        handle = model.ln_f.register_forward_hook(lambda module, inputs, output: output * torch.nan)
    stepper.step(1, 1e-3, [batch_of(1)])
    handle.remove()
    assert all(map(torch.equal, before, model.parameters()))
    if dtype != torch.float16:
        with pytest.raises(NonFiniteError, match="at step 1"):
            stepper.check()
    else:
        assert stepper.scaler.get_scale() < scale
        stepper.step(2, 1e-3, [batch_of(2)])
        assert not all(map(torch.equal, before, model.parameters()))


def test_compiled_blocks_give_the_gradients_of_plain_ones() -> None:
    model = GPT(tiny_config(position="rope", norm="rmsnorm")).to(DEVICE)
    plain = stepper_of(model, DEVICE)
    compiled = stepper_of(copy.deepcopy(model), DEVICE)
    batch = batch_of(1)
    compile_blocks(compiled.model, lambda: compiled.gradients([batch]), print)
    for stepper in (plain, compiled):
        stepper.gradients([batch])
    for one, other in zip(plain.model.parameters(), compiled.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-3)


PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]]
TOKENS = 24
"""Past the end of the window, which has 16."""


def generate(
    model: GPT, params: SamplingParams, prompts: list[list[int]], backend: str = "eager"
) -> list[list[int]]:
    """New tokens of every prompt."""
    batch = Batch(
        build_runtime(model, DecodeOptions(backend)), prompts, params, list(range(len(prompts)))
    )
    steps = [batch.step() for _ in range(params.max_new_tokens)]
    return [[step[row].token.id for step in steps] for row in range(len(prompts))]


@pytest.mark.parametrize("backend", ["eager", "graph"])
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_those_of_the_cpu_whatever_the_other_rows(
    position: str, temperature: float, backend: str
) -> None:
    """Also of more rows than a graph has."""
    params = SamplingParams(temperature=temperature, top_k=10, top_p=0.95, max_new_tokens=TOKENS)
    expected = generate(sharp_model(position=position), params, PROMPTS)
    model = sharp_model(position=position).to(DEVICE)
    assert generate(model, params, PROMPTS, backend) == expected
    for rows in (61, 67):
        prompts = PROMPTS + [[3, row % 23] for row in range(rows)]
        assert generate(model, params, prompts, backend)[:3] == expected


@pytest.mark.parametrize("changes", [{"n_kv_head": 1}, {"norm": "rmsnorm", "mlp": "swiglu"}])
def test_graphs_decode_every_architecture(changes: dict[str, object]) -> None:
    params = SamplingParams(temperature=0.8, min_p=0.02, max_new_tokens=TOKENS)
    model = sharp_model(position="rope", qk_norm=True, **changes)
    expected = generate(model, params, PROMPTS)
    assert build_runtime(model.to(DEVICE)).name.startswith("graph, ")
    assert generate(model, params, PROMPTS, "graph") == expected


@pytest.mark.parametrize("given", [{"repetition_penalty": 1.2}, {"logit_bias": ((3, 2.0),)}])
def test_pytorch_samples_from_the_logits_of_graphs(given: dict[str, object]) -> None:
    values = {"temperature": 0.8, "max_new_tokens": TOKENS, **given}
    params = SamplingParams.model_validate(values)
    expected = generate(sharp_model(), params, PROMPTS)
    assert generate(sharp_model().to(DEVICE), params, PROMPTS, "graph") == expected


def test_graphs_sample_several_tokens_before_any_is_read() -> None:
    """A model with a large window, which does not move."""
    model = sharp_model(block_size=128).to(DEVICE)
    params = SamplingParams(temperature=0.0, max_new_tokens=100)
    read = GraphRunner._sample
    with patch.object(GraphRunner, "_sample", autospec=True, side_effect=read) as reading:
        tokens = generate(model, params, [[1, 2, 3]], "graph")
    assert len(tokens[0]) == 100
    assert reading.call_count < 50


def test_threads_capture_and_replay_at_once() -> None:
    """As the engines of a server do, which has several models."""
    params = SamplingParams(temperature=0.8, max_new_tokens=TOKENS)
    models = [sharp_model(seed=seed).to(DEVICE) for seed in range(4)]
    expected = [generate(model, params, PROMPTS) for model in models]
    with ThreadPoolExecutor(len(models)) as pool:
        answers = [
            pool.submit(generate, model, params, PROMPTS, "graph") for model in models for _ in "ab"
        ]
        found = [answer.result() for answer in answers]
    assert found == [tokens for tokens in expected for _ in "ab"]


def test_bf16_weights_are_multiplied_in_bfloat16() -> None:
    """Log-probabilities are near those of the CPU, which rounds the weights alone."""
    # The first token comes from the prompt, and the bias decides it.
    params = SamplingParams(max_new_tokens=2, logprobs=23, logit_bias=((3, 100.0),))
    model = quantize(sharp_model(0.1), "bf16")
    found = []
    for place in (CPU, DEVICE):
        runtime = build_runtime(copy.deepcopy(model).to(place), DecodeOptions(kv_dtype="bf16"))
        batch = Batch(runtime, [[1, 2], [4]], params, [0, 0])
        batch.step()
        rows = [sorted(chunk.token.top) for chunk in batch.step().values()]
        found.append(torch.tensor([[logprob for _, logprob in row] for row in rows]))
    assert runtime.name == "graph, bf16 weights, bf16 cache, cuda:0"
    torch.testing.assert_close(found[1], found[0], atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize(
    ("kv_dtype", "tolerance"), [("fp32", 1e-4), ("bf16", 5e-2), ("fp16", 1e-2)]
)
def test_log_probabilities_through_a_cache_are_near_the_cpus(
    kv_dtype: str, tolerance: float
) -> None:
    params = SamplingParams(temperature=0, max_new_tokens=1, logprobs=23)
    found = []
    for place, kind in ((CPU, "fp32"), (DEVICE, kv_dtype)):
        batch = Batch(
            build_runtime(sharp_model(0.1).to(place), DecodeOptions("eager", kind)),
            PROMPTS,
            params,
            [0] * 3,
        )
        found.append(
            torch.tensor(
                [[logprob for _, logprob in sorted(c.token.top)] for c in batch.step().values()]
            )
        )
    torch.testing.assert_close(found[1], found[0], atol=tolerance, rtol=tolerance)


def test_beams_are_those_of_the_cpu() -> None:
    runtimes = [
        build_runtime(sharp_model().to(place), DecodeOptions("eager")) for place in (CPU, DEVICE)
    ]
    one, other = (beam_search(runtime.runner(4), [1, 2], 6, BeamOptions(4)) for runtime in runtimes)
    assert [beam.tokens for beam in other] == [beam.tokens for beam in one]
    assert [beam.logprob for beam in other] == pytest.approx(
        [beam.logprob for beam in one], abs=1e-3
    )


@pytest.mark.parametrize(
    "changes", [{}, {"position": "rope", "n_kv_head": 2, "norm": "rmsnorm", "mlp": "swiglu"}]
)
def test_everything_seen_inside_is_that_of_the_cpu(changes: dict[str, object]) -> None:
    edits = {"blocks.0.attn.hook_z": gpt.edits.zero(head=1)}
    found = []
    for place in (CPU, DEVICE):
        model = sharp_model(0.1, **changes).to(place)
        idx = (torch.arange(12) % 23).to(place)
        _, cache = gpt.run_with_cache(model, idx[None], edits=edits)
        assert {activation.device.type for activation in cache.values()} == {place.type}
        seen = surprisal(model, idx)
        views = {"lens": logit_lens(model, idx[None]), "bits": seen.bits}
        found.append({**cache, **views, "attention": attention_patterns(model, idx)})
    one, other = ({name: tensor.detach().cpu() for name, tensor in each.items()} for each in found)
    torch.testing.assert_close(other, one, atol=1e-4, rtol=1e-4)
