"""A model of ours as a model of transformers, in whichever architecture expresses it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.extras.export.architectures import architecture_for
from gpt.extras.export.hugging_face import weights_with_positions
from gpt.extras.export.tensors import to_theirs
from gpt.model import GPT
from gpt.system.errors import ConfigError


def hugging_face(model: GPT) -> Callable[[Tensor, SamplingParams], Tensor]:
    """Return `generate` of `build_hugging_face`, with a cache."""
    peer = build_hugging_face(model)

    def generate(idx: Tensor, params: SamplingParams) -> Tensor:
        count, sampled = params.max_new_tokens, {"temperature": params.temperature, "top_k": 0}
        ids: Tensor = peer.generate(
            idx,
            attention_mask=torch.ones_like(idx),
            do_sample=params.temperature > 0,
            min_new_tokens=count,
            max_new_tokens=count,
            use_cache=True,
            **(sampled if params.temperature else {}),
        )
        return ids

    return generate


def build_hugging_face(model: GPT) -> Any:
    """Build the model in transformers with the same weights; biases that ours lacks are zero there.

    Raises:
        InputError: transformers has no such architecture.
    """
    library, config = import_module("transformers"), model.config
    architecture = architecture_for(config)
    fields = {**architecture.to_fields(config), "vocab_size": config.vocab_size, "use_cache": True}
    tokens = {"tie_word_embeddings": config.tie_weights, "bos_token_id": None, "eos_token_id": None}
    peer = library.AutoModelForCausalLM.from_config(library.AutoConfig.for_model(**fields, **tokens)).eval()
    peer.to(next(model.parameters()).device)
    weights = to_theirs(architecture.entries(config), weights_with_positions(model))
    missing, unexpected = peer.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all("lm_head" in name for name in missing)
    check_agreement("Hugging Face", lambda idx: peer(idx).logits, model)
    return peer


@torch.inference_mode()
def check_agreement(name: str, logits: Callable[[Tensor], Tensor], model: GPT, tolerance: float = 1e-3) -> None:
    """Raise ConfigError if `logits`, (1, T) -> (1, T, V), are not those of the model."""
    idx = torch.arange(min(16, model.config.block_size)).remainder(model.vocab_size).unsqueeze(0)
    idx = idx.to(next(model.parameters()).device)
    difference = float((logits(idx) - model(idx)).abs().max())
    if not difference <= tolerance:
        raise ConfigError(f"{name} gives other logits with these weights, by {difference:.2g}")
