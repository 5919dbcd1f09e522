"""Write text with the model that `train_minimal.py` saved: the whole of it in one file.

    python examples/sample_minimal.py "ROMEO:"

A prefill computes the keys and values of the prompt; then each token needs one position of the
model only, since a cache keeps those of the earlier ones. The text is that of `scripts/sample.py
--backend eager`, character for character.
"""

import sys

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.data import CharTokenizer
from gpt.generation.sampling import sample
from gpt.model import GPT
from gpt.model.attention import Cache

TEMPERATURE = 0.8  # below 1: likely characters become likelier
TOP_K = 20  # only so many characters can be sampled


class KVCache(Cache):
    """Keeps the keys and values of all positions so far, by layer, each (B, H, T, D)."""

    def __init__(self) -> None:
        self.length = 0
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}

    def positions(self, new: int) -> Tensor:
        return torch.arange(self.length, self.length + new)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self.stored:
            old_k, old_v = self.stored[layer]
            k = torch.cat((old_k, k), dim=2)
            v = torch.cat((old_v, v), dim=2)
        self.stored[layer] = (k, v)
        return k, v

    def advance(self, new: int) -> None:
        self.length += new


@torch.inference_mode()
def generate(model: GPT, prompt: list[int], num_tokens: int, seed: int) -> list[int]:
    """Return `num_tokens` tokens, each sampled by the distribution after all before it."""
    generator = torch.Generator().manual_seed(seed)
    block_size = model.config.block_size
    window = prompt  # the tokens that the model sees, at most block_size
    new = window  # those of them that are not in the cache yet: first the whole prompt
    cache = KVCache()
    generated = []
    for _ in range(num_tokens):
        logits = model(torch.tensor([new]), cache=cache)  # (1, T, V)
        logits = logits[:, -1]  # (1, V): after the last token

        smallest_kept = logits.topk(min(TOP_K, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, float("-inf"))
        probabilities = (logits / TEMPERATURE).softmax(dim=-1)
        token = int(sample(probabilities, torch.rand(1, generator=generator)))
        generated.append(token)

        window = [*window, token]
        new = [token]
        if len(window) > block_size:
            # Positions count from the beginning of the window, so that all of it has to be
            # computed anew when it moves. It moves by a quarter at once, which makes that rare.
            window = window[block_size // 4 :]
            new = window
            cache = KVCache()
    return generated


def main() -> None:
    saved = torch.load("model.pt", weights_only=True)
    model = GPT(ModelConfig(**saved["config"])).eval()
    model.load_state_dict(saved["weights"])
    tokenizer = CharTokenizer(saved["characters"])
    prompt = sys.argv[1]
    tokens = generate(model, tokenizer.encode(prompt).tolist(), num_tokens=500, seed=1337)
    print(prompt + tokenizer.decode(tokens))


if __name__ == "__main__":
    main()
