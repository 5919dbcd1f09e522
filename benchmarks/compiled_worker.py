"""Answer requests, lines of JSON, by a model with a static cache and a compiled step.

The loop is that of gpt-fast (github.com/meta-pytorch/gpt-fast, generate.py): every row is at the
same position, and nothing is read back before the last token. Arguments:

    FILE    the configuration and the weights of the model, by torch.save
    DEVICE  where it runs
"""

import json
import os
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model.attention import Cache


class FixedCache(Cache):
    """Keys and values of a batch whose rows are all at the same positions.

    Args:
        keys: (L, B, K, S, D).
        values: likewise.
        new: (T,), the positions of the new tokens.
    """

    def __init__(self, keys: Tensor, values: Tensor, new: Tensor) -> None:
        self._keys = keys
        self._values = values
        self._new = new

    def positions(self, new: int) -> Tensor:
        return self._new

    def mask(self, new: int) -> Tensor:
        keys = torch.arange(self._keys.size(3), device=self._new.device)  # (S,)
        return (keys <= self._new.unsqueeze(1))[None, None]  # (1, 1, T, S)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self._keys[layer][:, :, self._new] = k
        self._values[layer][:, :, self._new] = v
        return self._keys[layer], self._values[layer]


class Decoder(nn.Module):
    """A model with the cache of a batch.

    The cache is made of buffers: torch.compile takes those for memory whose address stays, without
    which it would make no CUDA graph of a step that writes into it.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, model: GPT, batch: int) -> None:
        super().__init__()
        config = model.config
        shape = (config.n_layer, batch, config.kv_heads, config.block_size, config.head_dim)
        self.model = model
        device = model.wte.weight.device
        self.register_buffer("keys", torch.zeros(shape, device=device))
        self.register_buffer("values", torch.zeros(shape, device=device))

    def logits(self, idx: Tensor, positions: Tensor) -> Tensor:
        """Return the logits (B, T, V) of ids (B, T) at positions (T,)."""
        cache = FixedCache(self.keys, self.values, positions)
        logits: Tensor = self.model(idx, cache=cache)
        return logits

    def forward(self, idx: Tensor, positions: Tensor, temperature: float) -> Tensor:
        """Return the next tokens (B, 1)."""
        logits = self.logits(idx, positions)[:, -1]  # (B, V)
        if temperature == 0:
            return logits.argmax(dim=-1, keepdim=True)
        probabilities = torch.softmax(logits / temperature, dim=-1)
        # The largest p / q with exponential q is a sample, which needs no wait for the device.
        noise = torch.empty_like(probabilities).exponential_(1)
        return torch.argmax(probabilities / noise, dim=-1, keepdim=True)


class Worker:
    """The model, with a decoder and a compiled step for each size of a batch."""

    def __init__(self, model: GPT, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._decoders: dict[int, tuple[Decoder, Any]] = {}

    @torch.inference_mode()
    def answer(self, prompts: list[list[int]], steps: int, temperature: float) -> dict[str, Any]:
        """Sample `steps` tokens after each prompt and return the clock; without steps the logits.

        Args:
            prompts: of the same length.
        """
        decoder, step = self._decoder(len(prompts))
        idx = torch.tensor(prompts, device=self._device)  # (B, T)
        length = idx.size(1)
        positions = torch.arange(length, device=self._device)
        if steps == 0:
            return {"logits": decoder.logits(idx, positions).tolist()}
        start = time.perf_counter()
        # The prompt is not compiled: each length would be compiled anew.
        newest = decoder(idx, positions, temperature)
        tokens = [newest]
        position = torch.tensor([length], device=self._device)
        for _ in range(steps - 1):
            # A copy, since the next replay writes its result to the same memory.
            newest = step(newest, position, temperature).clone()
            tokens.append(newest)
            position += 1
        read = torch.cat(tokens, dim=1).cpu()  # which waits for the device
        assert read.shape == (len(prompts), steps)
        return {"ticks": [start, time.perf_counter()]}

    def _decoder(self, batch: int) -> tuple[Decoder, Any]:
        if batch not in self._decoders:
            decoder = Decoder(self._model, batch)
            step = torch.compile(decoder, mode="reduce-overhead", fullgraph=True)
            self._decoders[batch] = (decoder, step)
        return self._decoders[batch]


def main() -> None:
    """Answer until the end of the input."""
    path, name = sys.argv[1:]
    # What torch prints goes to the log, since the answers have standard output for themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    device = torch.device(name)
    saved = torch.load(path, map_location=device, weights_only=True)
    model = GPT(ModelConfig.model_validate(saved["config"])).eval().to(device)
    model.load_state_dict(saved["weights"])
    worker = Worker(model, device)
    for line in sys.stdin:
        print(json.dumps(worker.answer(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
