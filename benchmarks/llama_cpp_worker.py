"""One process with llama.cpp, by the low-level interface of its Python package.

Runs where `llama_cpp`, `gguf` and numpy are installed, which need not be where this package is: it imports nothing
of it. `benchmarks.conversation` says how it is spoken to. Arguments:

    FILE     numpy's archive of tensors, with the header as JSON under `header`
    TYPE     of the matrices, F32 or Q8_0
    THREADS  for prefill and decoding
    REPACK   1: let llama.cpp lay weights out anew for this processor, its default; 0: not
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

MICRO_BATCH = 512
"""Positions llama.cpp computes at a time, its own default."""


def write_gguf(archive: Path, kind: GGMLQuantizationType, path: Path) -> None:
    """Write the model; matrices are rounded to `kind`, vectors stay float32."""
    with np.load(archive) as tensors:
        header = json.loads(str(tensors["header"]))
        writer = GGUFWriter(path, "llama")
        for key, value in header.items():
            add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
            add(key, value)
        for name in tensors.files:
            if name != "header":
                stored = kind if tensors[name].ndim == 2 else GGMLQuantizationType.F32
                writer.add_tensor(name, quants.quantize(tensors[name], stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Context:
    """A llama.cpp context for a batch of sequences of one length.

    Args:
        model: loaded.
        rows: B sequences.
        length: most positions of one.
        threads: of both prefill and decoding.
        cache: type of keys and values, F32 or F16.
    """

    def __init__(self, model: Any, rows: int, length: int, threads: int, cache: str) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch = rows * -(-length // 256) * 256, rows * length
        params.n_ubatch, params.n_seq_max = MICRO_BATCH, rows
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        params.type_k = params.type_v = GGMLQuantizationType[cache]
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # on a CPU it is slower, and less exact
        self._handle = llama_cpp.llama_init_from_model(model, params)
        if not self._handle:
            raise MemoryError(f"llama.cpp makes no context for {rows} sequences of {length}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(rows * length, 0, 1)
        for slot in range(rows * length):
            self._batch.n_seq_id[slot] = 1

    def close(self) -> None:
        """Give its memory back."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._handle)

    def clear(self) -> None:
        """Forget every sequence."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._handle), False)

    def forward(self, tokens: list[list[int]], start: int, every: bool = False) -> Any:
        """Append (B, T) tokens from position `start` on; logits (B, V) of the last ones, or of all, (B T, V)."""
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

    def generate(self, prompts: list[list[int]], steps: int, temperature: float) -> Iterator[list[int]]:
        """The next token of every row, `steps` times."""
        sampler = make_sampler(temperature)
        length, tokens = len(prompts[0]), prompts
        slots = range(len(prompts)) if length == 1 else range(length - 1, length * len(prompts), length)
        for step in range(steps):
            self.forward(tokens, 0 if step == 0 else length + step - 1)
            ids = [llama_cpp.llama_sampler_sample(sampler, self._handle, slot) for slot in slots]
            yield ids
            tokens, slots = [[token] for token in ids], range(len(ids))
        llama_cpp.llama_sampler_free(sampler)


def make_sampler(temperature: float) -> Any:
    """llama.cpp's own: the most likely token at temperature 0, else one from the distribution."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if temperature:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(temperature))
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(1))
    else:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
    return chain


class Answers:
    """What is done for each request; a context is kept for the next one of the same size."""

    def __init__(self, model: Any, threads: int) -> None:
        self._model, self._threads = model, threads
        self._size: tuple[int, int, str] | None = None
        self._context: Context

    def logits(self, tokens: list[int]) -> dict[str, Any]:
        """(T, V), with keys and values in float32."""
        return {"logits": self._open(1, len(tokens), "F32").forward([tokens], 0, every=True).tolist()}

    def generate(self, prompts: list[list[int]], steps: int, temperature: float, cache: str) -> dict[str, Any]:
        """Tokens (steps, B), and the clock at the beginning, after each step and at the end."""
        context = self._open(len(prompts), len(prompts[0]) + steps, cache)
        ticks, tokens = [time.perf_counter()], []
        for ids in context.generate(prompts, steps, temperature):
            tokens.append(ids)
            ticks.append(time.perf_counter())
        return {"tokens": tokens, "ticks": [*ticks, time.perf_counter()]}

    def _open(self, rows: int, length: int, cache: str) -> Context:
        if self._size != (rows, length, cache):
            if self._size is not None:
                self._context.close()
            self._context = Context(self._model, rows, length, self._threads, cache)
            self._size = (rows, length, cache)
        self._context.clear()
        return self._context


def load_model(path: Path, repack: bool) -> Any:
    """A model of llama.cpp."""
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = repack
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        sys.exit(f"llama.cpp does not load {path}")
    return model


def main() -> None:
    """Answer until the input ends."""
    archive, kind, threads, repack = Path(sys.argv[1]), GGMLQuantizationType[sys.argv[2]], *map(int, sys.argv[3:])
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # whatever the library prints is no answer
        path = archive.with_suffix(f".{kind.name}.gguf")
        write_gguf(archive, kind, path)
        llama_cpp.llama_backend_init()
        answers = Answers(load_model(path, bool(repack)), threads)
        print(json.dumps({"version": llama_cpp.__version__}), file=out, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(getattr(answers, request.pop("do"))(**request)), file=out, flush=True)


if __name__ == "__main__":
    main()
