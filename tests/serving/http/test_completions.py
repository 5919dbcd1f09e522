"""`/v1/completions` as a client of the protocol sees it, with the real engine."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt
from gpt.api.scoring import score_text
from gpt.checkpoint import Loaded
from gpt.config import Config
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.generation.text import TextStream
from gpt.model import GPT
from http_server import CharModel, Serve, Served, make_loaded, real_engine
from patience import examples
from tiny import CORPUS, sharp_model

PROMPT = "Who keeps"
MESSAGE = {"role": "user", "content": PROMPT}


def alone(model: tuple[GPT, Any], prompt: str = PROMPT, **params: object) -> str:
    """Return what `gpt.generate` writes."""
    runtime = build_runtime(model[0], DecodeOptions("eager"))
    return gpt.generate(*model, prompt, runtime=runtime, **{"temperature": 0.8, **params})


def create(served: Served, **options: Any) -> Any:
    return served.client().completions.create(**{"model": "first", "prompt": PROMPT, **options})


def joined(chunks: list[Any]) -> list[dict[str, Any]]:
    """Return the choices of a stream, each put together from its parts.

    Only its last part says why it ends.
    """
    assert len({chunk.id for chunk in chunks}) == 1
    choices: dict[int, dict[str, Any]] = {}
    for part in (part for chunk in chunks for part in chunk.choices):
        body = part.model_dump()
        whole = choices.setdefault(
            part.index, {**body, "text": "", "logprobs": None, "finish_reason": None}
        )
        assert whole["finish_reason"] is None
        whole["text"] += body["text"]
        whole["finish_reason"] = body["finish_reason"]
        if body["logprobs"] is not None:
            known = whole["logprobs"] or {}
            whole["logprobs"] = {
                name: known.get(name, []) + values for name, values in body["logprobs"].items()
            }
    return [choices[index] for index in sorted(choices)]


@examples(0.1)
@given(
    prompts=st.lists(
        st.sampled_from(["It was", "Who", "the worst of rooms", ""]), min_size=1, max_size=3
    ),
    as_ids=st.booleans(),
    count=st.integers(0, 30),
    n=st.integers(1, 2),
    sampling=st.sampled_from(
        [{}, {"temperature": 0}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.2}, {"stop": ["e "]}]
    ),
    logprobs=st.sampled_from([None, 0, 1, 5]),
    echo=st.booleans(),
)
def test_completion_equals_generate_at_once_and_in_a_stream(
    server: Served,
    char_model: CharModel,
    prompts: list[str],
    as_ids: bool,
    count: int,
    n: int,
    sampling: dict[str, Any],
    logprobs: int | None,
    echo: bool,
) -> None:
    asked: list[Any] = prompts
    if as_ids and all(prompts):
        asked = [char_model[1].encode(prompt).tolist() for prompt in prompts]
    body = {"prompt": asked if len(asked) > 1 else asked[0], "max_tokens": count, "n": n, "seed": 3}
    body |= {"logprobs": logprobs, "echo": echo, "extra_body": sampling}
    answer = create(server, **body)
    streamed = joined(list(create(server, **body, stream=True)))
    assert [choice.model_dump() for choice in answer.choices] == streamed
    assert [choice.index for choice in answer.choices] == list(range(len(prompts) * n))
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    for choice in answer.choices:
        prompt = prompts[choice.index // n]
        seed = 3 + choice.index % n
        text = alone(char_model, prompt, max_new_tokens=count, seed=seed, **sampling)
        assert (choice.model_extra["seed"], choice.text) == (seed, prompt * echo + text)
        assert choice.finish_reason == ("length" if len(text) == count else "stop")
        assert (choice.logprobs is None) is (logprobs is None)
        if choice.logprobs is None:
            continue
        assert choice.logprobs.tokens == list(choice.text)
        assert choice.logprobs.text_offset == list(range(len(choice.text)))
        if len(prompt + text) > 1 and prompt:
            scored = [None, *score_text(*char_model, prompt + text).logprobs][
                len(prompt) * (not echo) :
            ]
            assert choice.logprobs.token_logprobs == pytest.approx(scored, abs=1e-4)
        for token, logprob, top in zip(
            choice.logprobs.tokens,
            choice.logprobs.token_logprobs,
            choice.logprobs.top_logprobs,
            strict=True,
        ):
            assert (top is None) is (logprob is None)
            assert top is None or (logprobs <= len(top) <= logprobs + 1 and top[token] == logprob)
    usage = answer.usage
    shown = sum(map(len, prompts))
    assert (usage.prompt_tokens, usage.total_tokens) == (shown, shown + usage.completion_tokens)
    assert "stop" in sampling or usage.completion_tokens == len(prompts) * n * count


def test_line_ends_of_a_prompt_are_those_of_a_corpus(server: Served) -> None:
    expected = server.post(prompt="a\nb", max_tokens=5, seed=1, echo=True, logprobs=0).json()[
        "choices"
    ]
    for ends in ("\r\n", "\r", "\r\r\n"):
        prompt = f"a{ends}b"
        assert (
            server.post(prompt=prompt, max_tokens=5, seed=1, echo=True, logprobs=0).json()[
                "choices"
            ]
            == expected
        )
        assert server.post("/tokenize", prompt=prompt).json()["count"] == 3


def test_seed_is_random_and_answered_where_it_is_left_out(server: Served) -> None:
    first, second = (create(server, max_tokens=40).choices[0] for _ in range(2))
    assert first.text != second.text
    assert (
        create(server, max_tokens=40, seed=first.model_extra["seed"]).choices[0].text == first.text
    )
    choices = create(server, n=2, seed=2**32 - 1).choices
    assert [choice.model_extra["seed"] for choice in choices] == [2**32 - 1, 0]


def test_bytes_of_no_text_are_prompts_and_no_character_is_cut(
    byte_server: Served, byte_model: tuple[GPT, ByteTokenizer]
) -> None:
    for ids in ([0xC3], [0x61, 0xE2, 0x82], [0xFF, 0x61]):
        body = {"prompt": ids, "max_tokens": 30, "seed": 3, "logprobs": 2}
        plain, echoed = (
            byte_server.post(**body, echo=echo).json()["choices"][0] for echo in (False, True)
        )
        shown = TextStream(ByteTokenizer()).begin(ids)
        assert echoed["text"] == shown + plain["text"]
        assert echoed["logprobs"]["tokens"][len(ids) :] == plain["logprobs"]["tokens"]
        offsets = [offset - len(shown) for offset in echoed["logprobs"]["text_offset"][len(ids) :]]
        assert offsets == plain["logprobs"]["text_offset"]
    request = {"prompt": "é", "max_tokens": 200, "seed": 4, "logprobs": 0}
    whole = create(byte_server, **request).choices[0]
    assert [whole.model_dump()] == joined(list(create(byte_server, **request, stream=True)))
    assert whole.text == alone(byte_model, "é", max_new_tokens=200, seed=4)
    assert len(whole.logprobs.tokens) == 200
    assert any(token.startswith("bytes:\\x") for token in whole.logprobs.tokens)


@pytest.mark.parametrize(
    ("ids", "text", "offsets"),
    [
        ([0x61, 0xE2, 0x82], "a\ufffd", [0, 1, 1]),
        ([0x61, 0xC3, 0x61], "a\ufffda", [0, 1, 2]),
        ([0xE2, 0x82, 0xC3, 0xFF, 0x61], "\ufffd\ufffd\ufffda", [0, 0, 1, 2, 3]),
        ([0xEF, 0xBF, 0xBD, 0x61], "\ufffda", [0, 0, 0, 1]),
        ([0xC3], "\ufffd", [0]),
        ([0xED, 0xA9], "\ufffd\ufffd", [0, 1]),
    ],
)
def test_each_byte_has_an_entry_at_its_place_in_the_text(
    byte_server: Served, ids: list[int], text: str, offsets: list[int]
) -> None:
    for count in (0, 2):  # an "a" after the prompt ends a character that is not whole
        body = {"prompt": ids, "max_tokens": count, "logprobs": 0, "logit_bias": {str(0x61): 100}}
        echoed = byte_server.post(**body, echo=True).json()["choices"][0]
        assert echoed["text"] == text + "a" * count
        assert echoed["logprobs"]["text_offset"] == [*offsets, *range(len(text), len(text) + count)]
        assert len(echoed["logprobs"]["tokens"]) == len(ids) + count
        plain = byte_server.post(**body).json()["choices"][0]
        assert plain["text"].endswith("a" * count)
        assert plain["logprobs"]["text_offset"] == list(
            range(len(plain["text"]) - count, len(plain["text"]))
        )


def test_half_of_a_pair_in_a_vocabulary_is_sent(serve: Serve) -> None:
    tokenizer = CharTokenizer("ab\ud800")
    loaded = make_loaded(sharp_model(vocab_size=3, block_size=16), tokenizer)
    with serve(real_engine, loaded=loaded) as served:
        body = {"prompt": "a", "max_tokens": 2, "logit_bias": {"2": 100}, "logprobs": 0}
        assert served.post(**body).json()["choices"][0]["text"] == "\ud800\ud800"
        assert served.post("/api/models/first").json()["characters"] == ["a", "b", "\ud800"]


@pytest.mark.parametrize("places", [[(9, 10)], [(90, 95), (40, 43)], [(30, 33), (31, 33)]])
def test_stop_string_ends_text_and_is_left_out(
    server: Served, char_model: CharModel, places: list[tuple[int, int]]
) -> None:
    whole = alone(char_model, max_new_tokens=300, seed=1)
    stops = [whole[begin:end] for begin, end in places]
    end = min(whole.find(text) + len(text) for text in stops)
    end -= max(len(text) for text in stops if whole[:end].endswith(text))
    request = {
        "max_tokens": 300,
        "seed": 1,
        "stop": stops if len(stops) > 1 else stops[0],
        "logprobs": 0,
    }
    choice = create(server, **request).choices[0]
    assert [choice.model_dump()] == joined(list(create(server, **request, stream=True)))
    assert choice.text == "".join(choice.logprobs.tokens) == whole[:end]
    assert choice.finish_reason == "stop"


def test_window_crops_a_prompt_that_is_still_echoed_whole(
    server: Served, char_model: CharModel
) -> None:
    prompt = CORPUS[:80]
    answer = server.post(
        prompt=prompt, max_tokens=5, seed=2, echo=True, logprobs=1, long_prompt="crop"
    )
    choice = answer.json()["choices"][0]
    assert choice["text"] == prompt + alone(char_model, prompt[-64:], max_new_tokens=5, seed=2)
    # The tokens that were cropped are not described.
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"][16:]
    assert choice["logprobs"]["text_offset"] == [*range(16, 85)]
    known = [logprob is not None for logprob in choice["logprobs"]["token_logprobs"]]
    assert known == [False] + [True] * 68
    full = create(server, max_tokens=300, extra_body={"overflow": "stop"}).choices[0]
    assert len(PROMPT + full.text) == 65  # the last token is sampled, and not read
    assert full.finish_reason == "length"


def test_stream_ends_with_its_usage_on_request(server: Served) -> None:
    for options in (None, {"include_usage": None}):
        plain = list(create(server, stream=True, stream_options=options))
        assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in plain)
    *chunks, last = create(
        server, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (
        9,
        12,
        21,
    )
    for options in (
        {"continuous_usage_stats": True},
        {"continuous_usage_stats": True, "include_usage": True},
    ):
        asked = {**options, "include_obfuscation": False}
        chunks = list(create(server, max_tokens=12, stream=True, stream_options=asked))
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 12
        assert (chunks[-1].choices == []) is ("include_usage" in options)


def test_chat_continues_its_messages_at_once_and_in_a_stream(
    server: Served, char_model: CharModel
) -> None:
    messages = [
        {"role": "system", "content": "It was"},
        {"role": "user", "content": [{"type": "text", "text": "Wéo"}]},
    ]
    body = {
        "model": "first",
        "messages": messages,
        "max_completion_tokens": 20,
        "seed": 3,
        "store": True,
    }
    whole = server.client().chat.completions.create(**body)
    assert whole.choices[0].message.content == alone(
        char_model, "It was\nWo", max_new_tokens=20, seed=3
    )
    parts = list(server.client().chat.completions.create(**body, stream=True))
    assert (
        "".join(part.choices[0].delta.content for part in parts) == whole.choices[0].message.content
    )
    assert (whole.object, parts[0].object) == ("chat.completion", "chat.completion.chunk")


def test_chat_has_the_log_probabilities_of_completions(server: Served) -> None:
    chats = server.client().chat.completions
    body = {"model": "first", "max_tokens": 30, "seed": 3}
    text = create(server, **body, logprobs=3).choices[0].logprobs
    asked = {**body, "messages": [{"role": "user", "content": PROMPT}], "logprobs": True}
    whole = chats.create(**asked, top_logprobs=3).choices[0].logprobs.content
    parts = [
        part.choices[0].logprobs.content
        for part in chats.create(**asked, top_logprobs=3, stream=True)
    ]
    assert [token for part in parts for token in part] == whole
    assert [token.token for token in whole] == text.tokens
    assert [bytes(token.bytes).decode() for token in whole] == text.tokens
    assert [token.logprob for token in whole] == text.token_logprobs
    for token, top in zip(whole, text.top_logprobs, strict=True):
        assert {
            **{each.token: each.logprob for each in token.top_logprobs},
            token.token: token.logprob,
        } == top
        assert len(token.top_logprobs) == 3
    (first, *_) = chats.create(**asked).choices[0].logprobs.content
    assert first.top_logprobs == []
    assert chats.create(**asked | {"logprobs": False}, top_logprobs=0).choices[0].logprobs is None


LEFT_OUT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("n", "stream", "stream_options", "temperature", "logit_bias", "user", "audio"), (None,)
    ),
    **dict.fromkeys(("tools", "functions", "tool_calls"), (None, [])),
    **dict.fromkeys(("tool_choice", "function_call"), (None, "auto", "none")),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "suffix": (None, ""),
    "seed": (None, -1),
    "top_k": (None, -1),
    "stop": (None, "", []),
    "top_p": (None,),
    "best_of": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "ignore_eos": (None, False),
    **dict.fromkeys(("max_completion_tokens", "max_tokens"), (None,)),
}
"""What clients send to say nothing."""


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_null_and_neutral_values_are_as_left_out(server: Served, route: str) -> None:
    plain: dict[str, Any] = {"logit_bias": {"5": 100}, "max_tokens": 4}
    plain |= (
        {"prompt": PROMPT}
        if route == "completions"
        else {"messages": [{"role": "user", "content": PROMPT}]}
    )

    def written(**changes: Any) -> str:
        answer = server.post(f"/v1/{route}", **{**plain, **changes})
        assert answer.status_code == 200, (changes, answer.text)
        (choice,) = answer.json()["choices"]
        assert choice["logprobs"] is None
        return choice["text"] if route == "completions" else choice["message"]["content"]

    text = written()
    for key, value in ((key, value) for key, values in LEFT_OUT.items() for value in values):
        kept = {"max_completion_tokens": 4} if key == "max_tokens" else {}
        kept |= {"temperature": 0} if key == "logit_bias" else {}
        found = written(**{key: value}, **kept)
        assert (found == text) or key == "logit_bias", (key, value)
    assert written(max_tokens=9, max_completion_tokens=2) == text[:2]


def test_zero_top_p_is_greedy(server: Served) -> None:
    for value in (0, 0.0):
        answer = server.post(prompt=PROMPT, max_tokens=40, top_p=value, temperature=2, seed=3)
        assert (
            answer.json()["choices"][0]["text"]
            == create(server, max_tokens=40, temperature=0).choices[0].text
        )


def test_end_of_text_ends_it_unless_it_is_ignored(serve: Serve, char_model: CharModel) -> None:
    end_id = int(char_model[1].encode("e")[0])
    config = Config.model_validate({"sample": {"end_id": end_id}})

    def load(folder: Path) -> Loaded:
        return Loaded(*char_model, config, folder, {"step": 5})

    with serve(real_engine, loaded=load) as served:
        for route, given in (
            ("completions", {"prompt": PROMPT}),
            ("chat/completions", {"messages": [MESSAGE]}),
        ):
            body = {**given, "max_tokens": 3, "logit_bias": {str(end_id): 100}}
            ended, ignored = (
                served.post(f"/v1/{route}", **body, ignore_eos=is_ignored).json()
                for is_ignored in (False, True)
            )
            assert (ended["choices"][0]["finish_reason"], ended["usage"]["completion_tokens"]) == (
                "stop",
                1,
            )
            assert (
                ignored["choices"][0]["finish_reason"],
                ignored["usage"]["completion_tokens"],
            ) == ("length", 3)


def test_bias_forces_a_token_and_both_penalties_change_a_text(
    server: Served, char_model: CharModel
) -> None:
    ids = char_model[1].encode("e").tolist()
    answer = server.http().post("/tokenize", json={"prompt": "eee"}).json()
    assert answer == {"count": 3, "max_model_len": 64, "tokens": 3 * ids}
    assert create(server, max_tokens=5, logit_bias={str(ids[0]): 100}).choices[0].text == "eeeee"
    for name in ("frequency_penalty", "presence_penalty"):
        text = create(server, max_tokens=60, seed=1, **{name: 1.5}).choices[0].text
        assert text == alone(char_model, max_new_tokens=60, seed=1, **{name: 1.5})
        assert text != alone(char_model, max_new_tokens=60, seed=1)


@pytest.mark.slow
def test_64_streams_at_a_time_equal_each_alone(server: Served, char_model: CharModel) -> None:
    together = threading.Barrier(64)
    prompts = ("It was the", "Who keeps the keys? asked", "every door had a key, every key", "T")

    def request(number: int) -> dict[str, Any]:
        return {
            "prompt": prompts[number % 4],
            "seed": number,
            "temperature": 0.8 * (number % 3 > 0),
        }

    def ask(number: int) -> dict[str, Any]:
        together.wait()
        (choice,) = joined(
            list(create(server, **request(number), max_tokens=3 + 7 * number % 90, stream=True))
        )
        return choice

    with ThreadPoolExecutor(64) as pool:
        choices = list(pool.map(ask, range(64)))
    for number, choice in enumerate(choices):
        assert choice["text"] == alone(
            char_model, **request(number), max_new_tokens=3 + 7 * number % 90
        ), number
        assert choice["finish_reason"] == "length"
    stats = server.engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_in_use) == (0, 0, 0)
