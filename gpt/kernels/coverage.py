"""What the C++ sources know of a model. Whatever is not listed here is computed by PyTorch."""

from collections.abc import Collection

from torch import nn

from gpt.config import ModelConfig

POSITIONS = ("learned", "sinusoidal", "rope")
NORMS = ("layernorm", "rmsnorm")
KEYS = frozenset(
    {"n_layer", "n_head", "n_kv_head", "n_embd", "block_size", "vocab_size", "dropout", "attention_dropout", "bias"}
    | {"norm", "norm_eps", "position", "rope_theta", "mlp", "mlp_width", "mlp_conv", "tie_weights", "qk_norm", "init"}
    | {"logit_softcap", "attention"}
)
"""Keys of `ModelConfig` that are known; others must have their defaults."""


def uncovered(config: ModelConfig, mlps: Collection[str]) -> str | None:
    """Return the first option that the sources do not know, `mlps` being the known values of `model.mlp`; or None."""
    for key, known in (("position", POSITIONS), ("norm", NORMS), ("mlp", mlps)):
        if getattr(config, key) not in known:
            return f"model.{key}={getattr(config, key)}"
    for key, field in type(config).model_fields.items():
        if key not in KEYS and getattr(config, key) != field.default:
            return f"model.{key}={getattr(config, key)}"
    return None


def unknown_parameter(model: nn.Module, config: ModelConfig) -> str | None:
    """Return the first parameter that is missing, unknown, or of another shape than the sources read; None: all fit."""
    expected = parameter_shapes(config)
    found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            return f"{name} of shape {found[name]}" if name in found else f"a model without {name}"
    return None


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by its name; a tied head is the embedding."""
    width, hidden, kv_width = config.n_embd, config.mlp_hidden, config.kv_heads * config.head_dim
    assert config.vocab_size is not None
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (config.vocab_size, width)}
    if config.position == "learned":
        shapes["wpe.weight"] = (config.block_size, width)
    if not config.tie_weights:
        shapes["lm_head.weight"] = (config.vocab_size, width)
    layers = {"attn.c_q": (width, width), "attn.c_k": (kv_width, width), "attn.c_v": (kv_width, width)}
    layers |= {"attn.c_proj": (width, width), "mlp.c_fc": (hidden, width), "mlp.c_proj": (width, hidden)}
    if config.mlp == "swiglu":
        layers["mlp.c_gate"] = (hidden, width)
    block: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in layers.items()}
    if config.bias:
        block |= {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    if config.qk_norm:
        block |= {f"attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    if config.mlp_conv is not None:
        block["mlp_conv.weight"] = (width, 1, config.mlp_conv)
    block |= _norm(config, "ln_1") | _norm(config, "ln_2")
    shapes |= {f"h.{layer}.{name}": shape for layer in range(config.n_layer) for name, shape in block.items()}
    return shapes | _norm(config, "ln_f")


def _norm(config: ModelConfig, name: str) -> dict[str, tuple[int, ...]]:
    parts = ("weight", "bias") if config.norm == "layernorm" and config.bias else ("weight",)
    return {f"{name}.{part}": (config.n_embd,) for part in parts}
