"""The architecture of a folder for transformers that computes every option of this package, by code in the folder."""

from collections.abc import Mapping
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.interop.remote_code.decoder import ACTIVATIONS, Decoder
from gpt.interop.tensors import Entry
from gpt.model import GPT
from gpt.model.meta import meta_device

MODEL_TYPE = "glassgpt"
CODE = ("modeling_glassgpt.py", "decoder.py")
"""Files of `gpt/interop/remote_code` that a folder has."""
COVERED = ("n_kv_head", "qk_norm", "bias", "tie_weights", "logit_softcap", "mlp_conv")
"""Keys of `ModelConfig` that the code computes, with any value."""
NAMES = {
    "position": ("learned", "sinusoidal", "rope"),
    "norm": ("layernorm", "rmsnorm"),
    "mlp": (*ACTIVATIONS, "swiglu"),
}
"""Values that it computes of the other keys."""
KEYS = (
    *("n_layer", "n_head", "n_kv_head", "n_embd", "block_size", "position", "rope_theta", "norm", "norm_eps"),
    *("mlp", "mlp_width", "mlp_conv", "qk_norm", "bias", "logit_softcap", "dropout", "attention_dropout"),
    "tie_weights",
)
"""Keys of `ModelConfig` that config.json has under the same name."""


class GlassGPT:
    """All that `GPT` has; tensors have its names. Sinusoidal positions are written as if they were learned."""

    name = "GlassGPTForCausalLM"
    prefix = "model."
    tied_by_default = False

    def to_fields(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "model_type": MODEL_TYPE,
            "auto_map": {
                "AutoConfig": "modeling_glassgpt.GlassGPTConfig",
                "AutoModelForCausalLM": "modeling_glassgpt.GlassGPTForCausalLM",
            },
            **{key: getattr(config, key) for key in KEYS},
            "n_kv_head": config.kv_heads,
            "position": "rope" if config.position == "rope" else "learned",
            "mlp_width": config.mlp_hidden,
            "attention_dropout": config.weights_dropout,
            # of a cache: one for the keys and values of each block, one for the inputs of each convolution
            "num_hidden_layers": config.n_layer * (1 if config.mlp_conv is None else 2),
        }

    def from_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {key: fields[key] for key in KEYS}

    def entries(self, config: ModelConfig) -> list[Entry]:
        with meta_device():
            names = set(GPT(config).state_dict())
        names |= {"wpe.weight"} if config.position == "sinusoidal" else set()
        names -= {"lm_head.weight"} if config.tie_weights else set()
        return [Entry(f"{self.prefix}{name}", (name,)) for name in sorted(names)]


def read_code() -> dict[str, bytes]:
    """Return the files of code that a folder has."""
    return {name: (files("gpt.interop.remote_code") / name).read_bytes() for name in CODE}


@torch.no_grad()
def compute_logits(fields: Mapping[str, Any], tensors: Mapping[str, Tensor], idx: Tensor) -> Tensor:
    """Return the logits (T, V) of ids (T,) that a folder's code computes of its config.json and its tensors."""
    weights = {name.removeprefix(GlassGPT.prefix): tensor for name, tensor in tensors.items()}
    if fields["tie_weights"]:
        weights["lm_head.weight"] = weights["wte.weight"]
    with meta_device():  # where initial weights cost no time and no random numbers
        decoder = Decoder(SimpleNamespace(**fields)).eval()
    decoder.load_state_dict(weights, assign=True)
    return decoder(idx.unsqueeze(0))[0]
