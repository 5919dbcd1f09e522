"""Answer requests, lines of JSON, by llama.cpp, through the low-level interface of its Python
package.

This process imports nothing of this package, so that it runs wherever `llama_cpp` and numpy are
installed. Arguments:

    FILE     the model, GGUF
    THREADS  for prefill and decoding
"""

import json
import math
import os
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

GGML_TYPES = {"F32": 0, "F16": 1}
"""GGML's numbers for types."""
CELLS_MULTIPLE = 256
"""llama.cpp rounds the cells of its cache up to a multiple of this."""


class Context:
    """A llama.cpp context for `rows` sequences of at most `length` tokens; `cache`: F32 or F16."""

    def __init__(self, model: Any, rows: int, length: int, threads: int, cache: str) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = rows * math.ceil(length / CELLS_MULTIPLE) * CELLS_MULTIPLE
        params.n_batch = rows * length
        params.n_ubatch = 512  # positions that are computed at a time, llama.cpp's default
        params.n_seq_max = rows
        params.n_threads = threads
        params.n_threads_batch = threads
        params.no_perf = True
        params.type_k = GGML_TYPES[cache]
        params.type_v = GGML_TYPES[cache]
        # on a CPU it is slower, and less exact
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._handle = llama_cpp.llama_init_from_model(model, params)
        if not self._handle:
            raise MemoryError(f"llama.cpp makes no context for {rows} sequences of {length}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(rows * length, 0, 1)
        for slot in range(rows * length):
            self._batch.n_seq_id[slot] = 1

    def close(self) -> None:
        """Free the memory, which Python's garbage collector does not know of."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._handle)

    def forward(self, tokens: list[list[int]], start: int, every: bool = False) -> Any:
        """Append tokens (B, T) from position `start` on; at position 0 the sequences begin anew.

        Return the logits of the last tokens, (B, V), or with `every` those of all, (B T, V).
        """
        if start == 0:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._handle), False)
        batch = self._batch
        slot = 0
        for row, line in enumerate(tokens):
            last = start + len(line) - 1
            for position, token in enumerate(line, start=start):
                batch.token[slot] = token
                batch.pos[slot] = position
                batch.seq_id[slot][0] = row
                batch.logits[slot] = every or position == last
                slot += 1
        batch.n_tokens = slot
        code = llama_cpp.llama_decode(self._handle, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode gives {code}")
        num_rows = slot if every else len(tokens)
        logits = llama_cpp.llama_get_logits(self._handle)
        return np.ctypeslib.as_array(logits, (num_rows, self._vocab_size))

    def generate(self, prompts: list[list[int]], steps: int, temperature: float) -> list[float]:
        """Sample `steps` tokens after each prompt.

        Return the clock at the start, after each step, and at the end.
        """
        ticks = [time.perf_counter()]
        sampler = make_sampler(temperature)
        length = len(prompts[0])
        start = 0
        tokens = prompts
        slots = range(length - 1, length * len(prompts), length)  # of the last token of each prompt
        for _ in range(steps):
            self.forward(tokens, start)
            start += len(tokens[0])
            ids = [llama_cpp.llama_sampler_sample(sampler, self._handle, slot) for slot in slots]
            ticks.append(time.perf_counter())
            tokens = [[token] for token in ids]
            slots = range(len(ids))
        llama_cpp.llama_sampler_free(sampler)
        return [*ticks, time.perf_counter()]


def make_sampler(temperature: float) -> Any:
    """Return llama.cpp's sampler of the most likely token at temperature 0, otherwise that of the
    distribution.
    """
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if temperature:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(temperature))
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(1))
    else:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
    return chain


def main() -> None:
    """Answer requests until the input ends.

    A context is kept for the next request of the same size.
    """
    path = sys.argv[1]
    threads = int(sys.argv[2])
    # standard output is for answers; what the library prints there goes to standard error
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        sys.exit(f"llama.cpp does not load {path}")
    context: Context | None = None
    size = (0, 0, "")
    for line in sys.stdin:
        request = json.loads(line)
        prompts = request["prompts"]
        steps = request["steps"]
        rows = len(prompts)
        length = len(prompts[0]) + steps
        cache = request.get("cache", "F32")
        if context is None or size != (rows, length, cache):
            if context is not None:
                context.close()
            size = (rows, length, cache)
            context = Context(model, rows, length, threads, cache)
        if steps == 0:
            answer = {"logits": context.forward(prompts, 0, every=True).tolist()}
        else:
            answer = {"ticks": context.generate(prompts, steps, request["temperature"])}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
