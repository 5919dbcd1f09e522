"""Build a model of this package in transformers, in whichever architecture expresses it."""

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
    """Return a function that generates with transformers and a cache: ids (B, T) to ids (B, T +
    max_new_tokens).
    """
    peer = build_hugging_face(model)

    def generate(idx: Tensor, params: SamplingParams) -> Tensor:
        # transformers warns of these where it does not sample; top_k 0 turns off its default of 50
        sampling: dict[str, float] = {}
        if params.temperature > 0:
            sampling = {"temperature": params.temperature, "top_k": 0}
        ids: Tensor = peer.generate(
            idx,
            attention_mask=torch.ones_like(idx),
            do_sample=params.temperature > 0,
            min_new_tokens=params.max_new_tokens,
            max_new_tokens=params.max_new_tokens,
            use_cache=True,
            **sampling,
        )
        return ids

    return generate


def build_hugging_face(model: GPT) -> Any:
    """Build the model in transformers with the same weights; biases that ours lacks are zero there.

    Raises:
        InputError: transformers has no such architecture.
    """
    transformers = import_module("transformers")
    config = model.config
    architecture = architecture_for(config)
    fields = {
        **architecture.to_fields(config),
        "vocab_size": config.vocab_size,
        "use_cache": True,
        "tie_word_embeddings": config.tie_weights,
        # no token begins or ends a text here
        "bos_token_id": None,
        "eos_token_id": None,
    }
    peer_config = transformers.AutoConfig.for_model(**fields)
    peer = transformers.AutoModelForCausalLM.from_config(peer_config).eval()
    peer.to(next(model.parameters()).device)
    weights = to_theirs(architecture.entries(config), weights_with_positions(model))
    missing, unexpected = peer.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all("lm_head" in name for name in missing)  # it may be tied to the embedding
    check_agreement("Hugging Face", lambda idx: peer(idx).logits, model)
    return peer


@torch.inference_mode()
def check_agreement(
    name: str, logits: Callable[[Tensor], Tensor], model: GPT, tolerance: float = 1e-3
) -> None:
    """Raise ConfigError if a peer's `logits`, a function from (1, T) to (1, T, V), differ from
    those of the model.
    """
    length = min(16, model.config.block_size)
    idx = torch.arange(length).remainder(model.vocab_size).unsqueeze(0)  # (1, T)
    idx = idx.to(next(model.parameters()).device)
    difference = float((logits(idx) - model(idx)).abs().max())
    if not difference <= tolerance:  # `not`, so that NaN fails
        raise ConfigError(f"{name} gives other logits with these weights, by {difference:.2g}")
