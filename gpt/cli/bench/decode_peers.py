"""Peers that decode with the weights of a model of ours."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.cli.bench.hugging_face import build_gpt2
from gpt.cli.bench.nanogpt import import_nanogpt, nanogpt_shape
from gpt.config import SamplingParams
from gpt.errors import ConfigError
from gpt.model import GPT


class HuggingFace:
    """GPT-2 under `generate`, with its cache.

    Args:
        model: of GPT-2's architecture, without biases; the peer's stay zero.
        compiled: give `generate` a static cache and let it compile its step.
    """

    def __init__(self, model: GPT, compiled: bool = False) -> None:
        self.model = build_gpt2(model.config, activation="gelu").eval()
        self.model.config.use_cache = True
        self._options = {"cache_implementation": "static"} if compiled else {}
        if compiled:
            self.model.forward = torch.compile(self.model.forward)
        renamed = {}
        for name, value in _fused_weights(model).items():
            is_conv1d = name.startswith("h.") and value.dim() == 2  # GPT-2 keeps those as (in, out)
            renamed[name if name.startswith("lm_head") else f"transformer.{name}"] = value.T if is_conv1d else value
        missing, unexpected = self.model.load_state_dict(renamed, strict=False)
        assert not unexpected
        assert all(name.endswith("bias") for name in missing)

    @torch.inference_mode()
    def logits(self, idx: Tensor) -> Tensor:
        """(B, T) -> (B, T, V)."""
        logits: Tensor = self.model(idx).logits
        return logits

    def generate(self, idx: Tensor, params: SamplingParams) -> int:
        """Go on from (B, T) ids; returns the length reached."""
        out: Tensor = self.model.generate(
            idx,
            attention_mask=torch.ones_like(idx),
            do_sample=True,
            temperature=params.temperature,
            top_k=0,
            min_new_tokens=params.max_new_tokens,
            max_new_tokens=params.max_new_tokens,
            use_cache=True,
            **self._options,
        )
        return out.size(1)


class NanoGPT:
    """nanoGPT's model, which computes the whole window for every token.

    Args:
        model: as for `HuggingFace`.
        checkout: of nanoGPT.
    """

    def __init__(self, model: GPT, checkout: Path) -> None:
        module = import_nanogpt(checkout)
        with contextlib.redirect_stdout(sys.stderr):  # it prints how large it is
            self.model: Any = module.GPT(module.GPTConfig(**nanogpt_shape(model.config))).eval()
        weights = _fused_weights(model)
        self.model.load_state_dict(
            {name if name.startswith("lm_head") else f"transformer.{name}": value for name, value in weights.items()}
        )

    @torch.inference_mode()
    def logits(self, idx: Tensor) -> Tensor:
        """(B, T) -> (B, T, V)."""
        logits: Tensor = self.model(idx, idx)[0]
        return logits

    def generate(self, idx: Tensor, params: SamplingParams) -> int:
        """Go on from (B, T) ids; returns the length reached."""
        out: Tensor = self.model.generate(idx, params.max_new_tokens, temperature=params.temperature)
        return out.size(1)


def check_agreement(peer: HuggingFace | NanoGPT, model: GPT) -> None:
    """Make sure that a peer computes what the model does.

    Raises:
        ConfigError: it does not.
    """
    idx = torch.arange(min(16, model.config.block_size)).remainder(model.vocab_size).unsqueeze(0)
    with torch.inference_mode():
        difference = float((peer.logits(idx) - model(idx)).abs().max())
    if difference > 1e-3:
        raise ConfigError(f"{type(peer).__name__} gives other logits with these weights, by {difference:.2g}")


def _fused_weights(model: GPT) -> dict[str, Tensor]:
    """The weights under GPT-2's names: queries, keys and values in one matrix, (out, in)."""
    weights = {}
    for name, value in model.state_dict().items():
        if ".attn.c_q." in name:
            parts = (model.get_parameter(name.replace("c_q", part)) for part in ("c_q", "c_k", "c_v"))
            weights[name.replace("c_q", "c_attn")] = torch.cat(tuple(parts))
        elif ".attn.c_k." not in name and ".attn.c_v." not in name:
            weights[name] = value
    return weights
