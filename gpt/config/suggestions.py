"""The key that was probably meant by an unknown one."""

import difflib
from collections.abc import Iterable

from gpt.config.sections import Config, Section

NAMES_ELSEWHERE = {
    "max_iters": "train.max_steps",
    "num_epochs": "train.max_steps",
    "num_train_epochs": "train.max_steps",
    "lr_decay_iters": "optim.decay_steps",
    "warmup_iters": "optim.warmup_steps",
    "decay_lr": "optim.schedule",
    "lr_scheduler_type": "optim.schedule",
    "lr": "optim.learning_rate",
    "beta1": "optim.betas",
    "beta2": "optim.betas",
    "optimizer": "optim.name",
    "gradient_accumulation_steps": "train.grad_accum_steps",
    "per_device_train_batch_size": "train.batch_size",
    "eval_iters": "train.eval_max_tokens",
    "eval_steps": "train.eval_interval",
    "always_save_checkpoint": "train.keep_last",
    "out_dir": "run.dir",
    "output_dir": "run.dir",
    "dataset": "data.source",
    "backend": "run.device",
    "hidden_size": "model.n_embd",
    "n_layers": "model.n_layer",
    "num_hidden_layers": "model.n_layer",
    "num_attention_heads": "model.n_head",
    "num_key_value_heads": "model.n_kv_head",
    "intermediate_size": "model.mlp_width",
    "max_position_embeddings": "model.block_size",
    "context_length": "model.block_size",
    "seq_len": "model.block_size",
}
"""What nanoGPT, transformers and others call a key that is not spelled like ours."""


def did_you_mean(key: tuple[str, ...]) -> str:
    """Return `; did you mean ...?` with the nearest known key, in its section or else another; "" if there is none."""
    name = _nearest(key)
    return f"; did you mean {name}?" if name else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the nearest of some names; "" if there is none."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def section_class(name: str) -> type[Section]:
    annotation = Config.model_fields[name].annotation
    assert isinstance(annotation, type)
    assert issubclass(annotation, Section)
    return annotation


def _nearest(key: tuple[str, ...]) -> str | None:
    sections = {name: list(section_class(name).model_fields) for name in Config.model_fields}
    if len(key) == 2 and key[0] in sections and key[1] in sections[key[0]]:
        return ".".join(key)
    if len(key) == 2 and (near := difflib.get_close_matches(key[1], sections.get(key[0], []), n=1)):
        return near[0]
    if key[-1] in NAMES_ELSEWHERE:
        return NAMES_ELSEWHERE[key[-1]]
    elsewhere = {name: f"{section}.{name}" for section, names in reversed(sections.items()) for name in names}
    known = {name: name for name in sections} | elsewhere
    near = difflib.get_close_matches(key[-1], known, n=1)
    return known[near[0]] if near else None
