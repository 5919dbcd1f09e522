"""A process with llama.cpp, by the low-level interface of its Python package; answers lines of JSON.

It imports nothing of this package, so that it runs wherever `llama_cpp` and numpy are installed. Arguments:

    FILE     the model, GGUF
    THREADS  for prefill and decoding
"""

import json
import os
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

TYPES = {"F32": 0, "F16": 1}
"""GGML's numbers of types."""


class Context:
    """A llama.cpp context for `rows` sequences of at most `length` tokens; `cache` is F32 or F16."""

    def __init__(self, model: Any, rows: int, length: int, threads: int, cache: str) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch = rows * -(-length // 256) * 256, rows * length
        params.n_ubatch, params.n_seq_max = 512, rows  # as many positions at a time as by default
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        params.type_k = params.type_v = TYPES[cache]
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # on a CPU it is slower, and less exact
        self._handle = llama_cpp.llama_init_from_model(model, params)
        if not self._handle:
            raise MemoryError(f"llama.cpp makes no context for {rows} sequences of {length}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(rows * length, 0, 1)
        for slot in range(rows * length):
            self._batch.n_seq_id[slot] = 1

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._handle)

    def forward(self, tokens: list[list[int]], start: int, every: bool = False) -> Any:
        """Append tokens (B, T) from position `start` on, 0: anew; return the last logits (B, V), or all, (B T, V)."""
        if start == 0:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._handle), False)
        batch, slot = self._batch, 0
        for row, line in enumerate(tokens):
            for position, token in enumerate(line, start=start):
                batch.token[slot], batch.pos[slot] = token, position
                batch.seq_id[slot][0], batch.logits[slot] = row, every or position == start + len(line) - 1
                slot += 1
        batch.n_tokens = slot
        if code := llama_cpp.llama_decode(self._handle, batch):
            raise RuntimeError(f"llama_decode gives {code}")
        logits = llama_cpp.llama_get_logits(self._handle)
        return np.ctypeslib.as_array(logits, (slot if every else len(tokens), self._vocab_size))

    def generate(self, prompts: list[list[int]], steps: int, temperature: float) -> list[float]:
        """Sample `steps` tokens after each prompt; return the clock at the start, after each step, and at the end."""
        ticks, sampler = [time.perf_counter()], make_sampler(temperature)
        length, tokens = len(prompts[0]), prompts
        slots = range(len(prompts)) if length == 1 else range(length - 1, length * len(prompts), length)
        for step in range(steps):
            self.forward(tokens, 0 if step == 0 else length + step - 1)
            ids = [llama_cpp.llama_sampler_sample(sampler, self._handle, slot) for slot in slots]
            ticks.append(time.perf_counter())
            tokens, slots = [[token] for token in ids], range(len(ids))
        llama_cpp.llama_sampler_free(sampler)
        return [*ticks, time.perf_counter()]


def make_sampler(temperature: float) -> Any:
    """Return llama.cpp's own: the most likely token at temperature 0, else one from the distribution."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if temperature:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(temperature))
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(1))
    else:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
    return chain


def main() -> None:
    """Answer requests until the input ends; a context is kept for the next request of the same size."""
    path, threads = sys.argv[1], int(sys.argv[2])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the library prints is not an answer
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp does not load {path}")
    contexts: dict[tuple[int, int, str], Context] = {}
    for line in sys.stdin:
        request = json.loads(line)
        prompts, steps = request["prompts"], request["steps"]
        size = (len(prompts), len(prompts[0]) + steps, request.get("cache", "F32"))
        if size not in contexts:
            for old in contexts.values():
                old.close()
            contexts = {size: Context(model, size[0], size[1], threads, size[2])}
        context = contexts[size]
        if steps == 0:
            answer = {"logits": context.forward(prompts, 0, every=True).tolist()}
        else:
            answer = {"ticks": context.generate(prompts, steps, request["temperature"])}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
