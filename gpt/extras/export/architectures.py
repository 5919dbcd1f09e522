"""Architectures of transformers that models of this package are exported to and imported from."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpt.config import ModelConfig
from gpt.extras.export.coverage import changes_for
from gpt.extras.export.tensors import Entry, linear
from gpt.system.errors import InputError

Fields = Mapping[str, Any]
"""The content of a config.json."""
ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu", "relu2": "relu2"}
"""Values of `model.mlp` without a gate, and what transformers calls them."""
ACTIVATIONS_IN = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {"gelu_new": "gelu_tanh"}
"""The other way; gelu_new is the same function, written out."""


class GPT2:
    """Learned positions, LayerNorm, a feed-forward network without a gate, and biases everywhere (Radford et al. 2019).

    Sinusoidal positions are written as if they were learned.
    """

    name = "GPT2LMHeadModel"
    prefix = "transformer."  # of the inner model's tensors, which may be saved without it
    tied_by_default = True  # where config.json does not say
    covered = (
        "bias",
        "tie_weights",
    )  # keys of `ModelConfig` that it has with any value, and `values` with some

    def values(self, config: ModelConfig) -> dict[str, Sequence[Any]]:
        return {
            "position": ("learned", "sinusoidal"),
            "norm": ("layernorm",),
            "mlp": tuple(ACTIVATIONS),
            "n_kv_head": (None, config.n_head),
        }

    def to_fields(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "model_type": "gpt2",
            "n_positions": config.block_size,
            "n_embd": config.n_embd,
            "n_layer": config.n_layer,
            "n_head": config.n_head,
            "n_inner": config.mlp_hidden,
            "activation_function": ACTIVATIONS[config.mlp],
            "layer_norm_epsilon": config.norm_eps,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.weights_dropout,
        }

    def from_fields(self, fields: Fields) -> dict[str, Any]:
        require(
            fields,
            scale_attn_weights=True,
            scale_attn_by_inverse_layer_idx=False,
            add_cross_attention=False,
        )
        activation = fields.get("activation_function", "gelu_new")
        if activation not in ACTIVATIONS_IN:
            raise unsupported("activation_function", activation, ", ".join(ACTIVATIONS_IN))
        return {
            "position": "learned",
            "norm": "layernorm",
            "bias": True,
            "mlp": ACTIVATIONS_IN[activation],
            "mlp_width": fields.get("n_inner"),
            "n_embd": fields["n_embd"],
            "n_layer": fields["n_layer"],
            "n_head": fields["n_head"],
            "block_size": fields["n_positions"],
            "norm_eps": fields.get("layer_norm_epsilon", 1e-5),
            "dropout": fields.get("resid_pdrop", 0.1),
            "attention_dropout": fields.get("attn_pdrop", 0.1),
        }

    def entries(self, config: ModelConfig) -> list[Entry]:
        return gpt2_entries(config, self.prefix, transposed=True, bias=True)


def gpt2_entries(config: ModelConfig, prefix: str, transposed: bool, bias: bool) -> list[Entry]:
    """Return the tensors of GPT-2: queries, keys and values are one layer.

    `prefix` is of all names except the head's; `transposed`: matrices of the blocks are stored as (in, out).
    """
    entries = [Entry(f"{prefix}{name}.weight", (f"{name}.weight",)) for name in ("wte", "wpe")]
    for layer in range(config.n_layer):
        ours = f"h.{layer}."
        theirs = prefix + ours
        heads = [f"{ours}attn.{part}" for part in ("c_q", "c_k", "c_v")]
        entries += linear(f"{theirs}attn.c_attn", heads, bias, transposed)
        for name in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            entries += linear(theirs + name, [ours + name], bias, transposed)
        for name in ("ln_1", "ln_2"):
            entries += linear(theirs + name, [ours + name], bias)
    entries += linear(f"{prefix}ln_f", ["ln_f"], bias)
    return (
        entries if config.tie_weights else [*entries, Entry("lm_head.weight", ("lm_head.weight",))]
    )


class Llama:
    """Rotary positions, RMSNorm, SwiGLU, grouped-query attention (Touvron et al. 2023, 2302.13971)."""

    name = "LlamaForCausalLM"
    prefix = "model."
    tied_by_default = False
    covered: tuple[str, ...] = ("n_kv_head", "bias", "tie_weights")
    model_type = "llama"
    qk_norm = False
    mlp_bias = True
    """Whether the feed-forward network can have biases."""

    def values(self, config: ModelConfig) -> dict[str, Sequence[Any]]:
        return {
            "position": ("rope",),
            "norm": ("rmsnorm",),
            "mlp": ("swiglu",),
            "qk_norm": (self.qk_norm,),
        }

    def to_fields(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "model_type": self.model_type,
            "max_position_embeddings": config.block_size,
            "hidden_size": config.n_embd,
            "intermediate_size": config.mlp_hidden,
            "num_hidden_layers": config.n_layer,
            "num_attention_heads": config.n_head,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_eps,
            "rope_theta": config.rope_theta,  # where transformers 4 and other programs look for it
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
            "attention_bias": config.bias,
            "attention_dropout": config.weights_dropout,
            **({"mlp_bias": config.bias} if self.mlp_bias else {}),
        }

    def from_fields(self, fields: Fields) -> dict[str, Any]:
        require(fields, hidden_act="silu", use_sliding_window=False)
        rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise unsupported("rope_type", rope.get("rope_type", rope.get("type")), "default")
        heads = fields["num_attention_heads"]
        head_dim = fields.get("head_dim") or fields["hidden_size"] // heads
        if head_dim * heads != fields["hidden_size"]:
            raise unsupported(
                "head_dim", head_dim, f"{fields['hidden_size']} / {heads}, hidden_size / heads"
            )
        return {
            "position": "rope",
            "norm": "rmsnorm",
            "mlp": "swiglu",
            "qk_norm": self.qk_norm,
            "bias": bool(fields.get("attention_bias") or fields.get("mlp_bias")),
            "mlp_width": fields["intermediate_size"],
            "n_embd": fields["hidden_size"],
            "n_layer": fields["num_hidden_layers"],
            "n_head": heads,
            "n_kv_head": fields.get("num_key_value_heads"),
            "block_size": fields["max_position_embeddings"],
            "norm_eps": fields.get("rms_norm_eps", 1e-6),
            "rope_theta": float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0),
            "attention_dropout": fields.get("attention_dropout", 0.0),
        }

    def entries(self, config: ModelConfig) -> list[Entry]:
        entries = [
            Entry("model.embed_tokens.weight", ("wte.weight",)),
            Entry("model.norm.weight", ("ln_f.weight",)),
        ]
        for layer in range(config.n_layer):
            theirs, ours = f"model.layers.{layer}.", f"h.{layer}."
            for name, source in LLAMA_LINEAR.items():
                has_bias = config.bias and (self.mlp_bias or name.startswith("self_attn"))
                entries += linear(theirs + name, [ours + source], has_bias)
            norms = LLAMA_NORMS | (QK_NORMS if self.qk_norm else {})
            entries += [
                Entry(f"{theirs}{name}.weight", (f"{ours}{source}.weight",))
                for name, source in norms.items()
            ]
        return (
            entries
            if config.tie_weights
            else [*entries, Entry("lm_head.weight", ("lm_head.weight",))]
        )


class Qwen3(Llama):
    """Llama with a norm on each query and key head (Yang et al. 2025, 2505.09388)."""

    name = "Qwen3ForCausalLM"
    covered = ("n_kv_head", "tie_weights")
    model_type = "qwen3"
    qk_norm = True
    mlp_bias = False


LLAMA_LINEAR = {
    "self_attn.q_proj": "attn.c_q",
    "self_attn.k_proj": "attn.c_k",
    "self_attn.v_proj": "attn.c_v",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.gate_proj": "mlp.c_gate",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}
LLAMA_NORMS = {"input_layernorm": "ln_1", "post_attention_layernorm": "ln_2"}
QK_NORMS = {"self_attn.q_norm": "attn.q_norm", "self_attn.k_norm": "attn.k_norm"}


Architecture = GPT2 | Llama
ARCHITECTURES: tuple[Architecture, ...] = (GPT2(), Llama(), Qwen3())


def architecture_for(
    config: ModelConfig, program: str = "transformers", lacking: Collection[str] = ()
) -> Architecture:
    """Return the architecture of a program that expresses a model exactly; `lacking`: values of `model.mlp` it lacks.

    The InputError, where none does, has the options that one would take, as few as there are.
    """
    changes = []
    for architecture in ARCHITECTURES:
        values = architecture.values(config)
        values["mlp"] = [name for name in values["mlp"] if name not in lacking]
        changes.append(changes_for(config, architecture.covered, values))
        if not changes[-1]:
            return architecture
    fewest = min(map(len, changes))
    options = " or with ".join(" ".join(each) for each in changes if len(each) == fewest)
    raise InputError(
        f"{program} has no architecture that computes this model; train one with {options}, as the recipe "
        "shakespeare_modern does, or export it --to html"
    )


def architecture_named(name: str) -> Architecture:
    for architecture in ARCHITECTURES:
        if architecture.name == name:
            return architecture
    raise InputError(
        f"{name} is not supported; {', '.join(each.name for each in ARCHITECTURES)} are"
    )


def require(fields: Fields, **values: Any) -> None:
    """Raise InputError where a field is there and has another value."""
    for name, value in values.items():
        if fields.get(name, value) != value:
            raise unsupported(name, fields[name], str(value))


def unsupported(name: str, value: object, supported: str) -> InputError:
    return InputError(f"{name} is {value!r}, which is not supported; {supported} is")
