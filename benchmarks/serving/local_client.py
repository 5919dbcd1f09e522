"""A process that answers load itself. Arguments: `engine` (ServingEngine) or `hugging-face` (generate), CHECKPOINT and
the dtype of keys and values in the engine.

Each line of JSON on its input is a `Load`; the answers are a line of JSON too.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.hugging_face import hugging_face
from benchmarks.processes import answer_requests
from benchmarks.serving.load import Answer, Load, to_json
from gpt.checkpoint import Loaded, load_trained
from gpt.cli.command import report
from gpt.cli.shared_options import load_given_plugins
from gpt.config import SamplingParams
from gpt.device import keep_freed_memory
from gpt.errors import GPTError
from gpt.generation import TextChunk
from gpt.serving import ServingEngine

Run = Callable[[Load], list[Answer]]


def engine(loaded: Loaded, kv_dtype: str) -> Run:
    """Return what submits requests to a `ServingEngine`, as large as the server's."""
    serving = ServingEngine(loaded.model, loaded.tokenizer, max_waiting=1 << 20, kv_dtype=kv_dtype, report=report)

    def run(load: Load) -> list[Answer]:
        free, done = threading.Semaphore(load.concurrency), threading.Semaphore(0)
        answers, failures = [], list[str]()

        def submit(prompt: str, due: float, seed: int) -> None:
            answer = Answer(due)
            answers.append(answer)

            def take(pieces: list[TextChunk]) -> None:
                answer.arrived.append((time.perf_counter(), len(pieces)))
                if (finish := pieces[-1].finish) is not None:
                    failures.extend([] if finish == "length" else [finish])
                    free.release()
                    done.release()

            params = SamplingParams(max_new_tokens=load.tokens, temperature=load.temperature, seed=seed)
            serving.submit(prompt, params, take)

        start = time.perf_counter()
        for number, prompt in enumerate(load.prompts):
            if load.arrivals:
                due = start + load.arrivals[number]
                time.sleep(max(0.0, due - time.perf_counter()))
            else:
                free.acquire()
                due = time.perf_counter()
            submit(prompt, due, number)
        for _ in load.prompts:
            done.acquire()
        if failures:
            raise GPTError(f"a request ended with {failures[0]!r}")
        return answers

    return run


def hugging_face_generate(loaded: Loaded) -> Run:
    """Return what calls transformers' `generate` for one request after another."""
    generate = hugging_face(loaded.model)

    def run(load: Load) -> list[Answer]:
        params, answers = SamplingParams(max_new_tokens=load.tokens, temperature=load.temperature), []
        for prompt in load.prompts:
            answer = Answer(time.perf_counter())
            count = generate(torch.from_numpy(loaded.tokenizer.encode(prompt).astype("int64"))[None], params).size(1)
            answer.arrived.append((time.perf_counter(), count - len(prompt)))
            answers.append(answer)
        return answers

    return run


def main() -> Callable[..., dict[str, Any]]:
    """Return what answers load, by the arguments of the process."""
    kind, checkpoint, kv_dtype = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    load_given_plugins(sys.argv[4:])
    keep_freed_memory()  # as the server does
    loaded = load_trained(checkpoint, Path("runs"), torch.device("cpu"))
    run = engine(loaded, kv_dtype) if kind == "engine" else hugging_face_generate(loaded)
    return lambda **load: to_json(run(Load(**load)))


if __name__ == "__main__":
    answer_requests(main)
