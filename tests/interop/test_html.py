"""An exported page against PyTorch: the same logits, the same texts, the same tokens for the same seed."""

import copy
import dataclasses
import json
import random
import re

import pytest
import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer

from gpt.config import SamplingParams
from gpt.data.bpe import BPETokenizer, learn_bpe
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.generation import generate_tokens
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.inspection.views.attention import attention_patterns, summarize_head
from gpt.interop import html
from gpt.interop.html import render_model_page
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import InputError
from inspection.variants import VARIANTS
from interop.node import run_page
from tiny import CORPUS, sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n'")
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
EVERY = {**VARIANTS, "wide": {"n_embd": 36, "n_head": 2, "mlp_width": 70, "bias": True}, "one": {"vocab_size": 23}}


def page_of(model: GPT, weights: str = "float32", tokenizer: Tokenizer = CHARS) -> str:
    return render_model_page(model, tokenizer, weights, SamplingParams(), "A <title>", "a note")


@pytest.mark.parametrize("variant", EVERY.values(), ids=EVERY.keys())
@torch.no_grad()
def test_logits_and_greedy_texts_are_those_of_pytorch_beyond_the_window(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    code = f"""
    const model = newModel();
    const logits = {IDS}.map((id, at) => [...model.step(id, at)]);
    const text = new Text(newModel());
    text.append(3); text.append(1);
    for (let count = 0; count < 200; count++) text.sample({{ temperature: 0 }}, 0);
    return [logits, text.ids.slice(2)];
    """
    expected = model(torch.tensor([IDS]))[0]
    settings = SamplingParams(temperature=0.0, max_new_tokens=200)
    greedy = list(generate_tokens(model, [3, 1], settings, build_runtime(model, DecodeOptions(backend="eager"))))
    logits, ids = run_page(page_of(model), code)
    torch.testing.assert_close(torch.tensor(logits), expected, atol=1e-4, rtol=0)
    assert ids == greedy


def rounded(model: GPT) -> GPT:
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.data = parameter.half().float()
    return model


@pytest.mark.parametrize(
    ("kept", "weights", "tolerance"),
    [
        ("float32", "fp16", 1e-4),
        ("float32", "int8", 1e-4),
        ("int8", "fp16", 1e-4),
        ("int8", "int8", 1e-4),
        ("bf16", "fp16", 1e-4),
        ("int4", "fp16", 1e-2),  # which is rounded again
    ],
)
@torch.no_grad()
def test_logits_are_those_of_the_model_with_weights_rounded_as_in_the_page(
    kept: str, weights: str, tolerance: float
) -> None:
    model = sharp_model()
    model = model if kept == "float32" else quantize(model, kept)
    code = f"const model = newModel(); return {IDS}.map((id, at) => [...model.step(id, at)]);"
    logits = torch.tensor(run_page(page_of(model, weights), code))
    in_page = rounded(quantize(model, "int8") if (kept, weights) == ("float32", "int8") else model)
    expected = in_page(torch.tensor([IDS]))[0]
    torch.testing.assert_close(logits, expected, atol=tolerance * float(expected.std()), rtol=0)


def added_tokens() -> BPETokenizer:
    """A small tokenizer with two tokens that are literal text."""
    library = LibraryTokenizer.from_str(json.dumps(learn_bpe([CORPUS], 300).to_dict()["tokenizer"]))
    library.add_special_tokens([AddedToken("<|end|>"), AddedToken("<|end|>.")])
    return BPETokenizer(json.loads(library.to_str()))


def test_byte_pairs_are_merged_as_in_the_library() -> None:
    tokenizer, generator = added_tokens(), random.Random(0)
    parts = ["the", "keeper's", "'LL", "don't", " ", "  ", "\n", "\t", "\r\n", "\x85", "\ufeff", "\u3000", "e\u0301"]
    parts += ["123", "½", "é", "你好", "🎭", "...", "<|end|>", "<|end|>.", "<|", "Ġ", "room " * 9, "\0", "ß", "_"]
    texts = ["", CORPUS, *("".join(generator.choices(parts, k=12)) for _ in range(300))]
    page = page_of(sharp_model(vocab_size=tokenizer.vocab_size), tokenizer=tokenizer)
    code = f"""
    const tokenizer = new Tokenizer(data.tokenizer);
    return {json.dumps(texts)}.map((text) => {{
      const {{ ids, unknown }} = tokenizer.encode(text);
      const show = tokenizer.stream();
      return [ids, unknown, ids.map(show)];
    }});
    """
    for text, (ids, unknown, pieces) in zip(texts, run_page(page, code), strict=True):
        assert ids == tokenizer.encode(text).tolist()
        assert unknown == []
        stream = tokenizer.stream()
        assert pieces == [stream.feed(index) for index in ids]


def test_more_weights_than_a_browser_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_BYTES", 1_000_000)
    with pytest.raises(InputError, match="a browser reads at most 1 MB of weights from a page, and these have 2; use"):
        page_of(sharp_model(n_embd=128))


def test_other_words_than_those_of_gpt2_are_refused() -> None:
    content = learn_bpe([CORPUS], 300).to_dict()["tokenizer"]
    for changes in ({"pre_tokenizer": None}, {"normalizer": {"type": "NFC"}}):
        with pytest.raises(
            InputError, match=r"a page has byte pair encoding only with words as of GPT-2.*; use --to hf"
        ):
            page_of(sharp_model(vocab_size=300), tokenizer=BPETokenizer(content | changes))


@torch.no_grad()
def test_summaries_of_attention_are_those_of_the_package() -> None:
    model = sharp_model(n_kv_head=2, position="rope")
    code = f"""
    const text = {IDS[:9]}.map((id) => data.tokenizer.chars[id]).join("");
    return new Heads(await newSource().attention({{ text }})).summarize(1 * 4 + 2);
    """
    summary = run_page(page_of(model), code)
    expected = attention_patterns(model, torch.tensor(IDS[:9]))
    whole = dataclasses.asdict(summarize_head(expected[1, 2]))
    assert summary == pytest.approx({name: whole[name] for name in ("distance", "entropy")}, abs=1e-5)


def test_a_text_of_bytes_goes_to_ids_and_back() -> None:
    code = """
    const tokenizer = new Tokenizer(data.tokenizer);
    const { ids, unknown } = tokenizer.encode("aé\\u{1f600}");
    return [ids, unknown, ids.map(tokenizer.stream()), tokenizer.first];
    """
    ids = ByteTokenizer().encode("aé\U0001f600").tolist()
    shown = ["a", "", "é", "", "", "", "\U0001f600"]
    assert run_page(page_of(sharp_model(vocab_size=256), tokenizer=ByteTokenizer()), code) == [ids, [], shown, 10]


def test_the_page_is_one_file_that_asks_nothing_of_anyone() -> None:
    page = page_of(sharp_model())
    assert page.count("<script") == 3
    assert "A &lt;title&gt;" in page
    assert "default-src 'none'" in page
    assert not re.search(r"""https?:|src=|url\(|@import|import\(|fetch\(|XMLHttp|innerHTML|\beval\(""", page)
    everywhere, *templates = re.split(r"<template", page)
    for part in templates:
        own = re.findall(r' id="([^"]+)"', everywhere + part.partition("</template>")[0])
        assert len(own) == len(set(own))


def test_a_hostile_vocabulary_stays_data() -> None:
    tokenizer = CharTokenizer("</script>&\u2028ab")
    page = page_of(sharp_model(), tokenizer=tokenizer)
    assert page.count("</script>") == 3
    assert run_page(page, "return data.tokenizer.chars;") == json.loads(json.dumps(tokenizer.itos))


@pytest.mark.parametrize("value", [float("nan"), 1e6])
def test_weights_that_a_format_cannot_hold_are_named(value: float) -> None:
    model = sharp_model()
    with torch.no_grad():
        model.h[1].mlp.c_fc.weight[0, 0] = value
    with pytest.raises(InputError, match=r"h\.1\.mlp\.c_fc\.weight has values that are not finite in fp16"):
        page_of(model, "fp16")
