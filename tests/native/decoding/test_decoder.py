"""The decoder, for every class of processors that this one is of, against the model in float64, and
its promises.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from native_support import EMULATED, needs_compiler
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.sampling import next_token_probabilities
from gpt.generation.sampling import sample as reference_sample
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.native.decoding.c_structs import sample_in_c, sampling_in_c
from gpt.native.decoding.decoder import KV_KINDS, Decoder, NotFiniteError, TokenBatch, load_decoder
from gpt.native.decoding.weights import Matrix, lay_out_weights, unsupported_reason
from gpt.system.environment import read_settings
from gpt.system.processor import Processor, supported_processors
from tiny import sharp_model

pytestmark = needs_compiler

VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "qk_norm": True, "n_kv_head": 2},
    {"norm": "rmsnorm", "position": "rope", "n_embd": 40, "n_head": 2},
    {"position": "sinusoidal", "mlp": "gelu_tanh", "bias": True, "n_kv_head": 1},
    {"mlp": "relu", "n_embd": 96, "n_head": 3, "mlp_width": 50},
    {"mlp": "relu2", "n_embd": 40, "n_head": 2, "norm": "rmsnorm", "block_size": 70},
]
every_variant = pytest.mark.parametrize("changes", VARIANTS, ids=str)
WEIGHTS = ("float32", "bf16", "int8", "int4")
PROCESSORS = [*supported_processors(), *EMULATED[1:]]


@pytest.fixture(params=PROCESSORS, ids=lambda processor: processor.name)
def processor(request: pytest.FixtureRequest) -> Processor:
    """Each class in turn, and plain C++ at every width of vectors, and with tiles."""
    return request.param


def decoder_of(
    model: GPT, sequences: int = 1, processor: Processor | None = None, kv_dtype: str = "fp32"
) -> Decoder:
    library = load_decoder(read_settings(), processor=processor)[0]
    return Decoder(library, lay_out_weights(model, processor), sequences, kv_dtype=kv_dtype)


def in_format(model: GPT, weights: str) -> GPT:
    return model if weights == "float32" else quantize(model, weights)


def prefill(decoder: Decoder, texts: Sequence[Sequence[int]]) -> Tensor:
    """All texts in one pass; logits after each token, one text after the other."""
    tokens = [
        (token, row, position)
        for row, text in enumerate(texts)
        for position, token in enumerate(text)
    ]
    return decoder.forward(TokenBatch(*zip(*tokens, strict=True)), range(len(tokens)))


def in_pieces(decoder: Decoder, text: Sequence[int], size: int, row: int = 0) -> Tensor:
    """Logits after each token of a text, of which so many are computed in a pass."""
    parts = [range(start, min(start + size, len(text))) for start in range(0, len(text), size)]
    logits = []
    for part in parts:
        batch = TokenBatch(text[part.start : part.stop], [row] * len(part), part)
        logits.append(decoder.forward(batch, range(len(part))))
    return torch.cat(logits)


def texts_of(*lengths: int) -> list[list[int]]:
    return [torch.randint(23, (length,)).tolist() for length in lengths]


@torch.inference_mode()
@pytest.mark.parametrize("weights", WEIGHTS)
@every_variant
def test_logits_are_those_of_the_model_in_float64(
    changes: dict[str, Any], weights: str, processor: Processor
) -> None:
    model = in_format(sharp_model(std=0.25, **changes), weights)
    texts = texts_of(16, 1, 9)
    exact = copy.deepcopy(model).double()
    found = prefill(decoder_of(model, 3, processor), texts).split([16, 1, 9])
    for text, logits in zip(texts, found, strict=True):
        expected = exact(torch.tensor([text]))[0].double()
        torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=5e-5)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("head_dim", "block_size"), [(16, 63), (48, 64), (64, 65), (80, 130), (16, 130), (80, 64)]
)
def test_logits_of_long_texts_and_wide_heads(
    head_dim: int, block_size: int, processor: Processor
) -> None:
    """Keys lie in blocks of 64 positions, values in rows that are padded to 16."""
    model = sharp_model(
        std=0.1, n_layer=1, n_head=2, n_embd=2 * head_dim, block_size=block_size, position="rope"
    )
    (text,) = texts_of(block_size)
    decoder = decoder_of(model, 1, processor)
    torch.testing.assert_close(
        in_pieces(decoder, text, 64), model(torch.tensor([text]))[0], rtol=1e-5, atol=5e-5
    )
    half = block_size // 2
    other = (text[-1] + 1) % 23
    again = decoder.forward(TokenBatch([other], [0], [half]), [0])  # a position may be written over
    expected = model(torch.tensor([[*text[:half], other]]))[0, -1:]
    torch.testing.assert_close(again, expected, rtol=1e-5, atol=5e-5)


@torch.inference_mode()
@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("bf16", 0.02), ("int8", 0.04)])
@every_variant
def test_narrower_cache_changes_logits_by_rounding_only(
    changes: dict[str, Any], kv_dtype: str, tolerance: float, processor: Processor
) -> None:
    model = sharp_model(std=0.1, **changes)
    texts = texts_of(16, 1, 9)
    exact = prefill(decoder_of(model, 3, processor), texts)
    rounded = prefill(decoder_of(model, 3, processor, kv_dtype), texts)
    assert 0 < float((rounded - exact).norm() / exact.norm()) < tolerance


FORMATS = [*((weights, "fp32") for weights in WEIGHTS), ("float32", "bf16"), ("float32", "int8")]
MIXED = [
    (PROCESSORS[row % len(PROCESSORS)], changes, *FORMATS[(row + column) % len(FORMATS)])
    for row in range(max(len(PROCESSORS), len(FORMATS)))
    for column, changes in enumerate(VARIANTS)
]
"""Each two of a class of processors, a model, and a format of weights and of keys and values meet.
"""


@torch.inference_mode()
@pytest.mark.parametrize(
    ("processor", "changes", "weights", "kv_dtype"),
    MIXED,
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_logits_do_not_depend_on_the_rest_of_the_pass(
    processor: Processor, changes: dict[str, Any], weights: str, kv_dtype: str
) -> None:
    model = in_format(sharp_model(std=0.25, **changes), weights)
    texts = texts_of(11, 1, 9, 16, 7, 3)
    together = prefill(decoder_of(model, 6, processor, kv_dtype), texts).split(
        [len(text) for text in texts]
    )
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        decoder = decoder_of(model, 1, processor, kv_dtype)
        for text, expected in zip(texts, together, strict=True):
            assert torch.equal(prefill(decoder, [text]), expected)
            if threads > 1 and len(text) not in (1, 11):
                continue  # threads that wait for each other at every token take long
            assert torch.equal(in_pieces(decoder, text, 1), expected)


@torch.inference_mode()
@pytest.mark.parametrize("kv_dtype", KV_KINDS)
def test_long_texts_are_the_same_bits_in_pieces_of_any_size(
    kv_dtype: str, processor: Processor
) -> None:
    model = sharp_model(
        std=0.1, n_layer=1, n_head=4, n_kv_head=2, n_embd=96, block_size=160, position="rope"
    )
    (text,) = texts_of(150)
    expected = in_pieces(decoder_of(model, 1, processor, kv_dtype), text, 1)
    for size in (3, 5, 11, 64):  # fewer rows than a tile, some tiles, more than a panel
        assert torch.equal(
            in_pieces(decoder_of(model, 1, processor, kv_dtype), text, size), expected
        )


@torch.inference_mode()
@pytest.mark.parametrize("kv_dtype", KV_KINDS)
def test_place_of_the_blocks_of_a_sequence_changes_no_bit(
    kv_dtype: str, processor: Processor
) -> None:
    model = sharp_model(
        std=0.1, n_layer=2, n_head=4, n_kv_head=2, n_embd=96, block_size=160, position="rope"
    )
    orderly, scattered = (decoder_of(model, 2, processor, kv_dtype) for _ in range(2))
    scattered.set_blocks(0, [5, 1, 2])
    scattered.set_blocks(1, [4, 0])
    for row, text in enumerate(texts_of(150, 70)):
        assert torch.equal(in_pieces(scattered, text, 64, row), in_pieces(orderly, text, 64, row))
    beginning = TokenBatch(text[:9], [1] * 9, range(9))
    assert torch.equal(scattered.forward(beginning, [8, 3]), prefill(orderly, [text[:9]])[[8, 3]])


@torch.inference_mode()
@pytest.mark.parametrize("kv_dtype", KV_KINDS)
def test_sequences_that_share_blocks_or_have_copies_go_on_alike(kv_dtype: str) -> None:
    decoder = decoder_of(
        sharp_model(std=0.25, position="rope", n_kv_head=2, block_size=128), 4, kv_dtype=kv_dtype
    )
    in_pieces(decoder, *texts_of(64 + 9), 64)
    decoder.copy_blocks([(7, 1), (4, 0), (5, 1)])
    decoder.set_blocks(1, [0, 7])  # one block shared, one copied
    decoder.set_blocks(2, [4, 5])  # both copied
    logits = decoder.forward(TokenBatch([3, 3, 3], [0, 1, 2], [73, 73, 73]), range(3))
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
    again = decoder.forward(TokenBatch([4], [1], [74]), [0])  # by its own copy
    assert torch.equal(again, decoder.forward(TokenBatch([4], [0], [74]), [0]))
    for sequence, blocks in (
        (0, [8]),
        (0, [-1]),
        (4, [0]),
        (0, [0, 1, 2]),
    ):  # blocks that there are not
        with pytest.raises(AssertionError):
            decoder.set_blocks(sequence, blocks)


def generate(model: GPT, uniforms: Tensor, params: SamplingParams, **options: Any) -> Any:
    rows = list(range(len(uniforms)))
    newest = TokenBatch([1] * len(rows), rows, [0] * len(rows))
    return decoder_of(model, len(rows)).generate(newest, uniforms, params, **options)


def samples_of(
    params: SamplingParams, uniforms: Tensor, seen: Sequence[Any], logits: Tensor
) -> list[Any]:
    rest = zip(uniforms.tolist(), seen, logits, strict=True)
    return [sample_in_c(sampling_in_c(params), *one) for one in rest]


def test_step_over_given_tokens_samples_what_generating_sampled() -> None:
    model = sharp_model(std=0.25)
    params = SamplingParams(temperature=1.2, repetition_penalty=1.7)
    uniforms = torch.rand(1, 10)
    logits = torch.empty(10, 23)
    seen = torch.zeros(1, 23, dtype=torch.uint8)
    seen[0, 1] = 1
    (tokens,), expected = generate(model, uniforms, params, seen=seen, keep_logits=True)
    assert all(seen[0, token] for token in tokens)
    given = [1, *tokens[:-1]]
    before = [
        torch.zeros(23, dtype=torch.uint8).index_fill(0, torch.tensor(given[: end + 1]), 1)
        for end in range(10)
    ]
    samples = samples_of(params, uniforms[0], before, logits)
    batch = TokenBatch(given, [0] * 10, range(10))
    assert decoder_of(model).step(batch, range(10), samples) == tokens
    assert torch.equal(logits, expected[:, 0])


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.3, "top_k": 5},
        {"top_k": 2**32 + 1},
        {"top_p": 0.7},
        {"min_p": 0.08},
        {"temperature": 0.9, "top_k": 15, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 0.7},
        *(
            {"temperature": t, "repetition_penalty": p}
            for t in (0.0, 0.8)
            for p in (1e-46, 1e-39, 1.8, 1e39)
        ),
    ],
    ids=str,
)
def test_decoder_samples_as_the_reference(sampling: dict[str, Any]) -> None:
    params = SamplingParams(**sampling)
    logits = torch.empty(400, 23)
    uniforms = torch.rand(400)
    uniforms[:40], uniforms[40:80] = 0.0, 1 - 2**-24
    seen = torch.rand(400, 23) < 0.3
    penalized = [None] * 400 if params.repetition_penalty == 1.0 else list(seen.to(torch.uint8))
    decoder = decoder_of(sharp_model(block_size=400))
    tokens = torch.randint(23, (400,)).tolist()
    found: list[int] = []
    samples = samples_of(params, uniforms, penalized, logits)
    for start in range(0, 400, 50):
        batch = TokenBatch(tokens[start : start + 50], [0] * 50, range(start, start + 50))
        found += decoder.step(batch, range(50), samples[start : start + 50])
    probabilities = next_token_probabilities(
        logits, params, [row.nonzero().flatten().tolist() for row in seen]
    )
    borders = probabilities.double().cumsum(dim=-1)
    for row, right in enumerate(reference_sample(probabilities, uniforms).tolist()):
        near = float((borders[row] - float(uniforms[row])).abs().min()) < 1e-5
        assert probabilities[row, found[row]] > 0
        assert found[row] == right or near


@pytest.mark.parametrize(
    ("vocab_size", "top_p"), [(50_257, 0.9), (4, 0.5)], ids=["large vocabulary", "tie"]
)
def test_top_p_adds_up_equal_probabilities_as_the_reference(vocab_size: int, top_p: float) -> None:
    model = sharp_model(vocab_size=vocab_size, std=0.0)
    params = SamplingParams(top_p=top_p)
    uniforms = torch.rand(1, 10)
    logits = torch.zeros(10, vocab_size)
    (found,), _ = generate(model, uniforms, params)
    assert found == reference_sample(next_token_probabilities(logits, params), uniforms[0]).tolist()


@torch.inference_mode()
@pytest.mark.parametrize(
    "changes",
    [
        {"qk_norm": True, "mlp": "relu"},
        {"mlp": "relu2", "norm": "rmsnorm"},
        {"mlp": "swiglu", "position": "rope"},
        {"mlp": "gelu_tanh", "bias": True},
    ],
    ids=str,
)
def test_nan_in_any_weight_is_not_hidden(changes: dict[str, Any]) -> None:
    names = [name for name, _ in sharp_model(**changes).named_parameters()]
    for name in names:
        # Torch's fused kernel of attention hides some NaN, so that it is not the reference here.
        model = sharp_model(std=0.25, attention="reference", **changes)
        model.get_parameter(name)[:] = math.nan
        assert not torch.isfinite(model(torch.tensor([[1, 2]]))).all()
        with pytest.raises(NotFiniteError):
            generate(model, torch.rand(1, 3), SamplingParams())


def test_logits_that_are_not_finite_are_an_error_that_says_which() -> None:
    model: Any = sharp_model()
    model.wpe.weight.data[6] = math.inf
    with pytest.raises(NotFiniteError) as caught:
        generate(model, torch.rand(2, 12), SamplingParams())
    assert (caught.value.row, caught.value.step) == (0, 6)
    decoder = decoder_of(model, 2)
    decoder.forward(TokenBatch([1] * 6, [1] * 6, range(6)), [])
    newest = TokenBatch([1, 1], [0, 1], [0, 4])
    for by_sequence in (False, True):
        with pytest.raises(NotFiniteError) as caught:
            decoder.generate(newest, torch.rand(2, 12), SamplingParams(), by_sequence=by_sequence)
        assert (caught.value.row, caught.value.step) == (1, 2)


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_are_laid_out_so_that_they_can_be_read_back(bits: int) -> None:
    integers = torch.randint(-7, 8, (70, 12), dtype=torch.int8)
    matrix = Matrix.from_integers(integers, torch.rand(70, 3), bits=bits)
    assert (matrix.outputs, matrix.inputs, matrix.group) == (70, 12, 4)
    blocks = matrix.weights
    if bits == 4:
        blocks = torch.stack((blocks << 4 >> 4, blocks >> 4), dim=2).flatten(1, 2)
    assert torch.equal(blocks.transpose(1, 2).flatten(0, 1)[:70], integers)
    assert (blocks.transpose(1, 2).flatten(0, 1)[70:] == 0).all()


@pytest.mark.parametrize("weights", WEIGHTS)
def test_decoder_has_a_copy_of_weights_in_covered_formats(weights: str) -> None:
    model: Any = in_format(sharp_model(n_kv_head=2, bias=True), weights)
    assert unsupported_reason(model) is None
    tensors = lay_out_weights(model).tensors
    before = [tensor.clone() for tensor in tensors]
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.add_(1)
    assert all(map(torch.equal, tensors, before))
