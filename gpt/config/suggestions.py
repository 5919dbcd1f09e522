"""Suggestions for messages: which key or option was probably meant by an unknown one."""

import difflib
from collections.abc import Iterable
from typing import Any, get_args, get_origin

from gpt.config.sections import SECTIONS

NAMES_ELSEWHERE = {
    "max_iters": "train.max_steps",
    "epochs": "train.max_steps",
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
    "length": "sample.max_new_tokens",
    "max_length": "sample.max_new_tokens",
    "num_tokens": "sample.max_new_tokens",
    "n_predict": "sample.max_new_tokens",
    "temp": "sample.temperature",
}
"""What nanoGPT, transformers and others call a key that is not spelled like ours."""

OPTIONS_ELSEWHERE = {
    "n": "--num-samples",
    "p": "--prompt",
    "start": "--prompt",
    "model": "--checkpoint",
    "ckpt": "--checkpoint",
    "out-dir": "--checkpoint",
    "format": "--to",
}
"""What nanoGPT, transformers, llama.cpp and others call an option that is not spelled like ours."""


def did_you_mean(key: tuple[str, ...]) -> str:
    """Return `; did you mean ...?` with the known key that is nearest to an unknown one.

    The key of its own section comes before those of others; "" if none is near.

    Args:
        key: a section and a key, or a key alone.
    """
    section = key[0] if len(key) == 2 else ""
    name = key[-1]
    fields = SECTIONS[section].model_fields if section in SECTIONS else {}
    meant = NAMES_ELSEWHERE.get(name)
    if meant is not None and not _is_for_sampling_only(meant, section):
        return _hint(meant.removeprefix(f"{section}."))
    if name in fields:
        return _hint(f"{section}.{name}")
    # `train.loss_terms.z_loss=1e-4` is written as train.loss_terms={z_loss: 1e-4}.
    mapping, _, inner = name.partition(".")
    if inner and mapping in fields and _takes_dict(fields[mapping].annotation):
        return _hint(f"'{section}.{mapping}={{{inner}: ...}}'")
    near_here = _closest(name, fields)
    if near_here is not None:
        return _hint(near_here)
    known = {**{name: name for name in SECTIONS}, **_keys()}
    near = _closest(name, known)
    return "" if near is None else _hint(known[near])


def option_meant(name: str, options: Iterable[str], with_keys: bool) -> str | None:
    """Return the option that was probably meant by an unknown `--name`; None if none is near.

    Args:
        options: those of the command, with their dashes.
        with_keys: whether the command has overrides, so that a `section.key` may be meant.
    """
    own = {option.strip("-"): option for option in options}
    meant: dict[str, str] = {}
    # What is added later replaces what has the same name: the command's own options come last.
    if with_keys:
        for word, key in NAMES_ELSEWHERE.items():
            if not key.startswith("sample."):
                meant[word] = key
        meant.update(_keys())
    for word, option in _options_elsewhere().items():
        if option in own.values():
            meant[word] = option
    meant.update(own)
    # Options are spelled with hyphens and keys with underscores, which users mix up.
    spelled = {word.replace("_", "-"): target for word, target in meant.items()}
    near = _closest(name.replace("_", "-"), spelled)
    return None if near is None else spelled[near]


def _options_elsewhere() -> dict[str, str]:
    """Return the options of this package by what others call them; a key of `sample` is one too."""
    options = {}
    for word, key in NAMES_ELSEWHERE.items():
        section, _, name = key.partition(".")
        if section == "sample":
            options[word] = f"--{name.replace('_', '-')}"
    return {**options, **OPTIONS_ELSEWHERE}


def _is_for_sampling_only(key: str, section: str) -> bool:
    """Return whether a key of `sample` cannot be meant, since another section was named.

    `length` is many things in other sections.
    """
    return key.startswith("sample.") and section not in ("", "sample")


def _keys() -> dict[str, str]:
    """Return `section.key` by key; that of the first section where several have it."""
    keys: dict[str, str] = {}
    for section, model in SECTIONS.items():
        for key in model.model_fields:
            keys.setdefault(key, f"{section}.{key}")
    return keys


def _takes_dict(kind: Any) -> bool:
    """Return whether a type is a dict, or a union or annotation of one."""
    return get_origin(kind) is dict or any(map(_takes_dict, get_args(kind)))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the nearest of some names; "" if none is near."""
    near = _closest(name, known)
    return "" if near is None else _hint(near)


def _closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like another one; None if none is like it."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return matches[0] if matches else None


def _hint(name: str) -> str:
    return f"; did you mean {name}?"
