"""Folders for transformers: logits, texts and ids, as it computes them; and imports."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer as LibraryTokenizer
from torch import Tensor

from gpt.config import SampleConfig, SamplingParams
from gpt.data.bpe import BPETokenizer, learn_bpe
from gpt.data.pairs import ANSWER, END_OF_TEXT, TURN, Message
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.data.words import learn_words
from gpt.extras.export.html import not_in_page
from gpt.extras.export.hugging_face import export_files, import_folder, not_in_folder, read_texts
from gpt.extras.export.tokenizer_json import from_tokenizer_json, to_tokenizer_json
from gpt.generation.conversation import encode_conversation
from gpt.generation.sampling import next_token_probabilities
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import InputError
from tiny import CORPUS, sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n?")
LLAMA: dict[str, object] = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu"}
QWEN = LLAMA | {"qk_norm": True, "n_kv_head": 1}
EXPORTS: list[tuple[str, dict[str, object]]] = [
    ("GPT2", {}),
    ("GPT2", {"bias": True, "tie_weights": True, "mlp": "gelu_tanh"}),
    ("GPT2", {"mlp": "relu", "mlp_width": 40, "norm_eps": 1e-3}),
    ("GPT2", {"position": "sinusoidal", "mlp": "relu2"}),
    ("Llama", LLAMA),
    ("Llama", LLAMA | {"n_kv_head": 2, "tie_weights": True, "bias": True}),
    ("Llama", LLAMA | {"rope_theta": 500.0, "norm_eps": 1e-3, "mlp_width": 72}),
    ("Qwen3", QWEN),
]
"""Architectures of transformers, and changes to a model that are exported as each."""
FAMILIES = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM", "Qwen3": "Qwen3ForCausalLM"}


def save(model: GPT, folder: Path, tokenizer: Tokenizer = CHARS, **params: Any) -> Path:
    for name, content in export_files(model, tokenizer, SamplingParams(**params)).items():
        (folder / name).write_bytes(content)
    return folder


def edit(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def sequences(model: GPT) -> Tensor:
    return torch.randint(
        model.vocab_size, (3, model.config.block_size), generator=torch.Generator().manual_seed(1)
    )


@pytest.mark.parametrize(("family", "changes"), EXPORTS)
@torch.no_grad()
def test_transformers_computes_the_same(
    family: str, changes: dict[str, object], tmp_path: Path
) -> None:
    model = sharp_model(std=0.1, block_size=64, **changes)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(save(model, tmp_path))
    assert type(theirs).__name__ == FAMILIES[family]
    idx = sequences(model)
    torch.testing.assert_close(theirs(idx).logits, model(idx), atol=1e-5, rtol=0)
    again, tokenizer = import_folder(tmp_path)
    assert tokenizer.to_dict() == CHARS.to_dict()
    assert not again.training
    torch.testing.assert_close(again(idx), model(idx), atol=0, rtol=0)
    inputs = json.loads((tmp_path / "tokenizer_config.json").read_text())["model_input_names"]
    assert inputs == ["input_ids", "attention_mask"]  # transformers 4 would give the model more


def whole_text() -> str:
    """Tiny Shakespeare where it is, otherwise the documentation that comes with Python."""
    file = Path(os.environ.get("GPT_DATA_DIR", "data")) / "tinyshakespeare.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else "".join(topics.values())


TEXT = whole_text() + "".join(map(chr, range(0x3000))) + "😀"


@pytest.mark.parametrize(
    "learn",
    [
        lambda: CharTokenizer(TEXT),
        ByteTokenizer,
        lambda: learn_bpe([TEXT[:100_000]], 512),
        lambda: learn_words(lambda: [TEXT], 1_000_000),
    ],
    ids=["char", "byte", "bpe", "word"],
)
def test_ids_of_a_whole_text_survive_the_way_there_and_back(
    learn: Callable[[], Tokenizer], tmp_path: Path
) -> None:
    tokenizer = learn()
    save(sharp_model(vocab_size=tokenizer.vocab_size), tmp_path, tokenizer)
    ids = tokenizer.encode(TEXT).tolist()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXT, verbose=False).input_ids == ids
    assert theirs.decode(ids) == TEXT
    assert import_folder(tmp_path)[1].to_dict() == tokenizer.to_dict()


def test_sampling_defaults_and_the_end_of_a_text_travel_along(tmp_path: Path) -> None:
    defaults = {
        "temperature": 0.7,
        "top_k": 9,
        "top_p": 0.8,
        "min_p": 0.1,
        "repetition_penalty": 1.3,
    }
    model = sharp_model(block_size=66)
    save(model, tmp_path, end_id=3, **defaults)
    config = transformers.GenerationConfig.from_pretrained(tmp_path)
    expected = {
        "do_sample": True,
        "eos_token_id": 3,
        "pad_token_id": 3,
        "max_length": 66,
        **defaults,
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert read_texts(tmp_path, model, CHARS) == ("none", SampleConfig(end_id=3))
    for ids, first in (([5, 7], 5), (50256, 3), ([], 3), (None, 3)):
        edit(tmp_path / "generation_config.json", eos_token_id=ids)
        assert read_texts(tmp_path, model, CHARS).sample.end_id == first
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(InputError, match=r"generation_config\.json is not a JSON object$"):
        read_texts(tmp_path, model, CHARS)
    save(sharp_model(), tmp_path, temperature=0.0, repetition_penalty=1.3)
    greedy = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert (greedy.do_sample, greedy.repetition_penalty) == (False, 1.3)


def test_transformers_samples_no_id_without_a_text_but_the_end(tmp_path: Path) -> None:
    model = sharp_model(std=0.001, vocab_size=300)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        save(model, tmp_path, end_id=299, temperature=1.0)
    )
    assert theirs.generation_config.suppress_tokens == [*range(23, 299)]
    written = theirs.generate(torch.zeros(20, 1, dtype=torch.long), do_sample=True)
    assert set(written.flatten().tolist()) <= {*range(23), 299}


@torch.no_grad()
def test_transformers_samples_from_the_same_distribution(tmp_path: Path) -> None:
    params = SamplingParams(
        temperature=0.7, top_k=9, top_p=0.95, min_p=0.02, repetition_penalty=1.3
    )
    model = sharp_model(std=0.1)
    save(model, tmp_path, **params.model_dump())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    idx = sequences(model)[:, :8]
    said = theirs.generate(idx, max_new_tokens=1, return_dict_in_generate=True, output_scores=True)
    ours = next_token_probabilities(model(idx)[:, -1], params, idx.tolist())
    torch.testing.assert_close(said.scores[0].softmax(dim=-1), ours, atol=1e-5, rtol=0)
    assert ((ours == 0).sum(dim=-1) > 23 - 9 - 1).all()
    assert theirs.generate(idx, max_length=11).size(1) == 11
    assert theirs.generate(idx).size(1) == 16  # the window


ENDS: list[tuple[Tokenizer, int, str | None]] = [
    (CHARS, 0, "\n"),
    (CHARS, 23, None),
    (ByteTokenizer(), 10, None),
]
"""A tokenizer, the id at which a text ends, and what transformers calls that token."""


@pytest.mark.parametrize(("tokenizer", "end_id", "end"), ENDS)
def test_tokenizer_has_an_end_of_text_where_it_changes_no_ids(
    tokenizer: Tokenizer, end_id: int, end: str | None, tmp_path: Path
) -> None:
    save(sharp_model(vocab_size=256), tmp_path, tokenizer, end_id=end_id)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.eos_token, theirs.pad_token) == (end, end)
    named = [] if end is not None else [f"sample.end_id={end_id} as the tokenizer's eos_token"]
    assert not_in_folder(tokenizer, SamplingParams(end_id=end_id)) == named
    text = "bad\n\n face\n"
    ids = tokenizer.encode(text).tolist()
    assert theirs(text).input_ids == ids
    assert theirs.decode(ids) == text
    if end is not None:
        assert theirs.eos_token_id == theirs.pad_token_id == end_id
    theirs.save_pretrained(tmp_path)
    assert import_folder(tmp_path)[1].to_dict() == tokenizer.to_dict()


def test_token_added_to_merged_bytes_is_the_end_of_text(tmp_path: Path) -> None:
    content = learn_bpe([TEXT[:10_000]], 300).to_dict()["tokenizer"]
    library = LibraryTokenizer.from_str(json.dumps(content))
    library.add_special_tokens(["<|end|>"])
    tokenizer = BPETokenizer(json.loads(library.to_str()))
    save(
        sharp_model(vocab_size=tokenizer.vocab_size),
        tmp_path,
        tokenizer,
        end_id=tokenizer.vocab_size - 1,
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.eos_token, theirs.eos_token_id) == ("<|end|>", tokenizer.vocab_size - 1)


def test_defaults_without_a_place_are_named() -> None:
    assert not_in_folder(CHARS, SamplingParams()) == not_in_page(SamplingParams()) == []
    params = SamplingParams(stop=("the", "\n"), repetition_penalty=1.3, end_id=0, max_new_tokens=7)
    assert not_in_folder(CHARS, params) == ["sample.max_new_tokens=7", 'sample.stop=["the", "\\n"]']
    assert not_in_page(params) == [
        "sample.repetition_penalty=1.3",
        'sample.stop=["the", "\\n"]',
    ]


def theirs_of(family: str, **changes: Any) -> Any:
    """A model of transformers whose every weight matters."""
    sizes = {"vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    if family != "GPT2":
        sizes = {
            "vocab_size": 256,
            "max_position_embeddings": 32,
            "hidden_size": 32,
            "intermediate_size": 48,
        }
        sizes |= {
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
        }
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(sizes | changes))
    model = getattr(transformers, FAMILIES[family])(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)  # norms and biases too
    return model


def write_theirs(model: Any, folder: Path, shards: str = "10GB") -> None:
    model.save_pretrained(folder, max_shard_size=shards)
    content = export_files(sharp_model(vocab_size=256), ByteTokenizer(), SamplingParams())[
        "tokenizer.json"
    ]
    (folder / "tokenizer.json").write_bytes(content)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("GPT2", {}),
        ("GPT2", {"tie_word_embeddings": False, "activation_function": "gelu", "n_inner": 40}),
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("Llama", {"attention_bias": True, "rms_norm_eps": 1e-3}),
        ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}),
        ("Qwen3", {}),
    ],
)
@torch.no_grad()
def test_model_of_transformers_is_imported(
    family: str, changes: dict[str, object], tmp_path: Path
) -> None:
    theirs = theirs_of(family, **changes)
    for folder, shards in ((tmp_path / "one", "10GB"), (tmp_path / "several", "20KB")):
        write_theirs(theirs, folder, shards)
        assert (folder / "model.safetensors.index.json").exists() == (folder.name == "several")
        model, tokenizer = import_folder(folder)
        assert isinstance(tokenizer, ByteTokenizer)
        idx = sequences(model)
        torch.testing.assert_close(model(idx), theirs(idx).logits, atol=1e-5, rtol=0)
    next(folder.glob("model-00002-*")).unlink()
    with pytest.raises(InputError, match="has no model-00002-of"):
        import_folder(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"architectures": ["BertModel"]},
            "BertModel is not supported; GPT2LMHeadModel, LlamaForCausalLM",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn', which is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "its weights are quantized"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', which is not supported; silu is"),
        ({"head_dim": 16}, "head_dim is 16"),
        ({"hidden_size": "wide"}, "config.json"),
        ({"num_key_value_heads": 3}, "not divisible by n_kv_head 3"),
        ({"vocab_size": 5}, "the tokenizer has 23 ids, the model 5"),
        ({"num_hidden_layers": 3}, "has 3 layers, the weights 2"),
        (
            {"intermediate_size": 24},
            r"gate_proj.weight has shape .* which does not fit the configuration",
        ),
    ],
)
def test_configuration_that_is_not_computed_is_refused(
    fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    save(sharp_model(**LLAMA), tmp_path)
    edit(tmp_path / "config.json", **fields)
    with pytest.raises(InputError, match=message):
        import_folder(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize(
    "damage", [None, lambda content: b"", lambda content: content[:100], lambda _: b"[" * 100_000]
)
def test_missing_or_damaged_file_is_named(
    name: str, damage: Callable[[bytes], bytes] | None, tmp_path: Path
) -> None:
    file = save(sharp_model(**LLAMA), tmp_path) / name
    file.write_bytes(damage(file.read_bytes())) if damage else file.unlink()
    with pytest.raises(InputError, match=name):
        import_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        (
            {"qk_norm": True, "norm": "rmsnorm"},
            "model.norm=layernorm model.qk_norm=false or with model.position=rope model.mlp=swiglu",
        ),
        ({"position": "rope"}, "model.position=learned"),
        (LLAMA | {"qk_norm": True, "bias": True}, "model.qk_norm=false or with model.bias=false"),
    ],
)
def test_model_unknown_to_transformers_is_refused(changes: dict[str, object], remedy: str) -> None:
    with pytest.raises(InputError) as error:
        export_files(sharp_model(**changes), CHARS, SamplingParams())
    assert str(error.value) == (
        f"transformers has no architecture that computes this model; train one with {remedy}, "
        "as the recipe shakespeare_modern does, or export it --to html"
    )


def test_weights_that_are_quantized_or_not_finite_are_refused(tmp_path: Path) -> None:
    model = sharp_model(**LLAMA)
    with pytest.raises(InputError, match="the weights are int8"):
        export_files(quantize(model, "int8"), CHARS, SamplingParams())
    model.ln_f.weight.data[3] = torch.nan
    with pytest.raises(InputError, match=r"model\.norm\.weight has values that are not finite"):
        import_folder(save(model, tmp_path))


def in_library(tokenizer: Tokenizer) -> Any:
    return LibraryTokenizer.from_str(json.dumps(to_tokenizer_json(tokenizer)))


def test_tokenizer_of_merged_bytes_is_exported_as_byte_pairs() -> None:
    content = to_tokenizer_json(ByteTokenizer())
    content["model"]["vocab"]["th"] = 256
    content["model"]["merges"] = [["t", "h"]]
    tokenizer = from_tokenizer_json(content)
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.encode("the").tolist() == [256, ord("e")]
    assert to_tokenizer_json(tokenizer) == content
    for one in (CharTokenizer(TEXT), ByteTokenizer(), CharTokenizer("x")):
        content = json.loads(in_library(one).to_str())  # as the library itself would write it
        assert from_tokenizer_json(content).to_dict() == one.to_dict()
    few = CharTokenizer("ab?", unknown="replace")
    assert in_library(few).encode("aXb").ids == few.encode("aXb").tolist()


CONVERSATION = [
    {"role": "system", "content": "be bad"},
    {"role": "user", "content": "a cab"},
    {"role": "assistant", "content": "bed"},
    {"role": "user", "content": "face"},
]


MARKED = CharTokenizer([*" abcdef\n", END_OF_TEXT, ANSWER, TURN])
WITH_MARKS: list[Tokenizer] = [
    MARKED,
    ByteTokenizer(),
    learn_bpe([CORPUS], 300),
    learn_words(lambda: ["be bad\na cab"], 20, [END_OF_TEXT, ANSWER, TURN]),
]


@pytest.mark.parametrize("tokenizer", WITH_MARKS)
def test_conversation_has_the_ids_that_the_training_had(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    end = int(tokenizer.encode(END_OF_TEXT)[0])
    params = {"begin_id": end, "end_id": end, "stop": (TURN,)}
    save(sharp_model(vocab_size=tokenizer.vocab_size), tmp_path, tokenizer, **params)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [Message(each["role"], each["content"]) for each in CONVERSATION]
    expected = encode_conversation(
        tokenizer, messages, SamplingParams.model_validate(params), block_size=64
    )
    assert theirs.apply_chat_template(CONVERSATION, return_dict=False) == expected
    if tokenizer is MARKED:
        assert theirs.bos_token_id == end
    generation = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert generation.eos_token_id == [end, int(tokenizer.encode(TURN)[0])]


@pytest.mark.parametrize("tokenizer", WITH_MARKS)
@pytest.mark.parametrize(
    ("items", "mark", "stop"),
    [("lines", "\n", ()), ("paragraphs", END_OF_TEXT, ()), ("pairs", END_OF_TEXT, (TURN,))],
)
@pytest.mark.parametrize("is_saved_again", [False, True])
def test_run_on_items_is_imported_as_it_was_exported(
    items: str,
    mark: str,
    stop: tuple[str, ...],
    tokenizer: Tokenizer,
    is_saved_again: bool,
    tmp_path: Path,
) -> None:
    end = int(tokenizer.encode(mark)[0])
    model = sharp_model(vocab_size=tokenizer.vocab_size)
    values = {"temperature": 0.0, "repetition_penalty": 1.3, "max_new_tokens": 16}
    sample = SampleConfig(begin_id=end, end_id=end, stop=stop, **values)
    save(model, tmp_path, tokenizer, **sample.model_dump())
    if is_saved_again:
        transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert read_texts(tmp_path, model, import_folder(tmp_path)[1]) == (items, sample)


def test_token_of_another_model_that_begins_and_ends_texts_is_no_mark(tmp_path: Path) -> None:
    model = sharp_model()
    save(model, tmp_path, begin_id=4, end_id=4)  # as <|endoftext|> of GPT-2
    assert read_texts(tmp_path, model, CHARS) == ("none", SampleConfig(end_id=4))


def test_begin_of_a_text_is_added_to_it(tmp_path: Path) -> None:
    save(sharp_model(), tmp_path, CHARS, begin_id=4, end_id=4)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("bad").input_ids == [4, *CHARS.encode("bad").tolist()]
    assert import_folder(tmp_path)[1].to_dict() == CHARS.to_dict()
