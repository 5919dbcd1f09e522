"""Architectures of transformers that models of this package are exported to and imported from.

An architecture translates a `ModelConfig` to the keys of a config.json and back, and lists the
tensors of its models. Names of keys and tensors are those of transformers.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpt.config import ModelConfig
from gpt.extras.export.coverage import changes_for
from gpt.extras.export.tensors import Entry, linear
from gpt.system.errors import InputError

Fields = Mapping[str, Any]
"""The content of a config.json."""
ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu", "relu2": "relu2"}
"""Name in transformers of each value of `model.mlp` that has no gate."""
IMPORTED_ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "gelu_new": "gelu_tanh",  # the same function, which GPT-2 writes out as a formula
}
"""Value of `model.mlp` for each name of an activation function in transformers."""


class GPT2:
    """GPT-2: learned positions, LayerNorm, no gate, and biases everywhere (Radford et al. 2019).

    Sinusoidal positions are exported as if they were learned, and missing biases as zeros.
    """

    name = "GPT2LMHeadModel"
    prefix = "transformer."  # the names of all tensors but the head's begin with it
    tied_by_default = True  # whether a config.json without tie_word_embeddings means a tied head
    covered = ("bias", "tie_weights")
    """Keys of `ModelConfig` that the architecture covers with any value."""

    def values(self, config: ModelConfig) -> dict[str, Sequence[Any]]:
        """Return the values that the architecture covers of keys that it covers in part."""
        return {
            "position": ("learned", "sinusoidal"),
            "norm": ("layernorm",),
            "mlp": tuple(ACTIVATIONS),
            "n_kv_head": (None, config.n_head),
        }

    def to_fields(self, config: ModelConfig) -> dict[str, Any]:
        """Return the keys of a config.json that describe a model."""
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
        """Return the keys of `ModelConfig`; what config.json leaves out has its default there."""
        # These switches change what a model computes, and no key of `ModelConfig` does the same.
        require(
            fields,
            scale_attn_weights=True,
            scale_attn_by_inverse_layer_idx=False,
            add_cross_attention=False,
        )
        activation = fields.get("activation_function", "gelu_new")
        if activation not in IMPORTED_ACTIVATIONS:
            supported = ", ".join(IMPORTED_ACTIVATIONS)
            raise unsupported("activation_function", activation, supported)
        return {
            "position": "learned",
            "norm": "layernorm",
            "bias": True,
            "mlp": IMPORTED_ACTIVATIONS[activation],
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
        """Return the tensors of a model; the matrices of its blocks are stored as (in, out)."""
        return gpt2_entries(config, self.prefix, transposed=True, bias=True)


def gpt2_entries(config: ModelConfig, prefix: str, transposed: bool, bias: bool) -> list[Entry]:
    """Return the tensors of a GPT-2, in which one layer computes queries, keys and values.

    Args:
        prefix: what the names of all tensors but the head's begin with.
        transposed: whether the matrices of the blocks are stored as (in, out).
        bias: whether linear layers and norms have biases.
    """
    entries = [Entry(f"{prefix}{name}.weight", (f"{name}.weight",)) for name in ("wte", "wpe")]
    for layer in range(config.n_layer):
        ours = f"h.{layer}."
        theirs = prefix + ours
        qkv = [f"{ours}attn.{name}" for name in ("c_q", "c_k", "c_v")]
        entries += linear(f"{theirs}attn.c_attn", qkv, bias, transposed)
        for name in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            entries += linear(theirs + name, [ours + name], bias, transposed)
        for name in ("ln_1", "ln_2"):
            entries += linear(theirs + name, [ours + name], bias)
    entries += linear(f"{prefix}ln_f", ["ln_f"], bias)
    if not config.tie_weights:
        entries.append(Entry("lm_head.weight", ("lm_head.weight",)))
    return entries


class Llama:
    """Llama: rotary positions, RMSNorm, SwiGLU, grouped queries (Touvron et al. 2023, 2302.13971).

    The attributes and methods mean what they mean in `GPT2`.
    """

    name = "LlamaForCausalLM"
    prefix = "model."
    tied_by_default = False
    covered: tuple[str, ...] = ("n_kv_head", "bias", "tie_weights")
    model_type = "llama"
    qk_norm = False
    mlp_bias = True  # whether the feed-forward network has biases where attention has them

    def values(self, config: ModelConfig) -> dict[str, Sequence[Any]]:
        return {
            "position": ("rope",),
            "norm": ("rmsnorm",),
            "mlp": ("swiglu",),
            "qk_norm": (self.qk_norm,),
        }

    def to_fields(self, config: ModelConfig) -> dict[str, Any]:
        fields = {
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
            "rope_theta": config.rope_theta,  # transformers 4 and other programs look for it here
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
            "attention_bias": config.bias,
            "attention_dropout": config.weights_dropout,
        }
        if self.mlp_bias:
            fields["mlp_bias"] = config.bias
        return fields

    def from_fields(self, fields: Fields) -> dict[str, Any]:
        require(fields, hidden_act="silu", use_sliding_window=False)
        # transformers 5 writes rope_parameters, transformers 4 wrote rope_scaling, and its first
        # releases called the rope_type `type`.
        rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise unsupported("rope_type", rope_type, "default")
        hidden_size = fields["hidden_size"]
        heads = fields["num_attention_heads"]
        head_dim = fields.get("head_dim") or hidden_size // heads
        if head_dim * heads != hidden_size:  # a `GPT` always has n_embd / n_head
            raise unsupported("head_dim", head_dim, f"{hidden_size} / {heads}, hidden_size / heads")
        rope_theta = rope.get("rope_theta") or fields.get("rope_theta") or 10000.0
        has_bias = fields.get("attention_bias") or fields.get("mlp_bias")
        return {
            "position": "rope",
            "norm": "rmsnorm",
            "mlp": "swiglu",
            "qk_norm": self.qk_norm,
            "bias": bool(has_bias),  # of only one of them, the others are read as zeros
            "mlp_width": fields["intermediate_size"],
            "n_embd": hidden_size,
            "n_layer": fields["num_hidden_layers"],
            "n_head": heads,
            "n_kv_head": fields.get("num_key_value_heads"),
            "block_size": fields["max_position_embeddings"],
            "norm_eps": fields.get("rms_norm_eps", 1e-6),
            "rope_theta": float(rope_theta),
            "attention_dropout": fields.get("attention_dropout", 0.0),
        }

    def entries(self, config: ModelConfig) -> list[Entry]:
        entries = [
            Entry("model.embed_tokens.weight", ("wte.weight",)),
            Entry("model.norm.weight", ("ln_f.weight",)),
        ]
        norms = dict(LLAMA_NORMS)
        if self.qk_norm:
            norms |= QK_NORMS
        for layer in range(config.n_layer):
            theirs = f"model.layers.{layer}."
            ours = f"h.{layer}."
            for name, source in LLAMA_LINEAR.items():
                can_have_bias = self.mlp_bias or name.startswith("self_attn")
                entries += linear(theirs + name, [ours + source], config.bias and can_have_bias)
            for name, source in norms.items():
                entries.append(Entry(f"{theirs}{name}.weight", (f"{ours}{source}.weight",)))
        if not config.tie_weights:
            entries.append(Entry("lm_head.weight", ("lm_head.weight",)))
        return entries


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
"""Linear layers of a block in transformers, and the layer of a `GPT` that each is."""
LLAMA_NORMS = {"input_layernorm": "ln_1", "post_attention_layernorm": "ln_2"}
QK_NORMS = {"self_attn.q_norm": "attn.q_norm", "self_attn.k_norm": "attn.k_norm"}

Architecture = GPT2 | Llama
ARCHITECTURES: tuple[Architecture, ...] = (GPT2(), Llama(), Qwen3())


def architecture_for(
    config: ModelConfig, program: str = "transformers", lacking: Collection[str] = ()
) -> Architecture:
    """Return the architecture of a program that computes exactly what a model computes.

    Args:
        program: its name, for the message.
        lacking: values of `model.mlp` that transformers has and the program does not.

    Raises:
        InputError: there is none; the message names the fewest options that would have to change.
    """
    changes_of_each = []
    for architecture in ARCHITECTURES:
        values = architecture.values(config)
        values["mlp"] = [name for name in values["mlp"] if name not in lacking]
        changes = changes_for(config, architecture.covered, values)
        if not changes:
            return architecture
        changes_of_each.append(changes)
    fewest = min(len(changes) for changes in changes_of_each)
    nearest = [" ".join(changes) for changes in changes_of_each if len(changes) == fewest]
    raise InputError(
        f"{program} has no architecture that computes this model; "
        f"train one with {' or with '.join(nearest)}, as the recipe shakespeare_modern does, "
        "or export it --to html"
    )


def architecture_named(name: str) -> Architecture:
    """Return the architecture of this name; raise InputError where it is not supported."""
    for architecture in ARCHITECTURES:
        if architecture.name == name:
            return architecture
    supported = ", ".join(architecture.name for architecture in ARCHITECTURES)
    raise InputError(f"{name} is not supported; {supported} are")


def require(fields: Fields, **values: Any) -> None:
    """Raise InputError where config.json has another value for a key; the key may be missing."""
    for name, value in values.items():
        if fields.get(name, value) != value:
            raise unsupported(name, fields[name], str(value))


def unsupported(name: str, value: object, supported: str) -> InputError:
    return InputError(f"{name} is {value!r}, which is not supported; {supported} is")
