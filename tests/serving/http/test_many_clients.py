"""Many clients at a time: everyone gets what it would get alone, and nothing is left behind."""

import threading
from concurrent.futures import ThreadPoolExecutor

import gpt
from gpt.data.tokenizers import CharTokenizer
from gpt.generation import build_runtime
from gpt.generation.backends.selection import DecodeOptions
from gpt.model import GPT
from http_server import Served

CLIENTS = 64
PROMPTS = ("It was the", "Who keeps the keys? asked", "every door had a key, every key", "T")


def test_64_streams_at_a_time_are_what_each_would_be_alone(
    server: Served, char_model: tuple[GPT, CharTokenizer]
) -> None:
    together = threading.Barrier(CLIENTS)

    def ask(number: int) -> tuple[str, list[str]]:
        with server.client() as client:
            together.wait()
            chunks = list(client.completions.create(**request(number), stream=True))
        parts = [chunk.choices[0] for chunk in chunks]
        return "".join(part.text for part in parts), [part.finish_reason for part in parts if part.finish_reason]

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(ask, range(CLIENTS)))
    runtime = build_runtime(char_model[0], DecodeOptions("eager"))
    for number, (text, reasons) in enumerate(answers):
        asked = request(number)
        expected = gpt.generate(
            *char_model,
            asked["prompt"],
            runtime=runtime,
            max_new_tokens=asked["max_tokens"],
            seed=asked["seed"],
            temperature=asked["temperature"],
        )
        assert text == expected, number
        assert reasons == ["length"]
    stats = server.engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_in_use) == (0, 0, 0)


def request(number: int) -> dict:
    """Return one of many requests of different prompts, lengths and seeds; every third is greedy."""
    return {
        "model": "second",
        "prompt": PROMPTS[number % len(PROMPTS)],
        "max_tokens": 3 + 7 * number % 90,
        "seed": number,
        "temperature": 0 if number % 3 == 0 else 0.8,
    }


def test_the_metrics_count_what_happened(server: Served) -> None:
    def value(name: str) -> float:
        lines = server.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    grown = {
        'gpt_requests_total{status="200"}': 1,
        "gpt_prompt_tokens_total": 6,
        "gpt_request_seconds_count": 1,
        "gpt_tokens_generated_total{": 8,
    }
    before = {name: value(name) for name in grown}
    server.post(prompt="It was", max_tokens=8, model="second")
    assert {name: value(name) - before[name] for name in grown} == grown
    assert value('gpt_blocks{model="second"}') > 0
    assert value("gpt_running{") == 0
