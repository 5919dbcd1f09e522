"""Suggestions for messages: the key or option that was probably meant by an unknown one."""

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
"""The keys of this package by the names that nanoGPT, transformers and others give them."""

OPTIONS_ELSEWHERE = {
    "n": "--num-samples",
    "p": "--prompt",
    "start": "--prompt",
    "model": "--checkpoint",
    "ckpt": "--checkpoint",
    "out-dir": "--checkpoint",
    "format": "--to",
}
"""The options of this package by the names that nanoGPT, llama.cpp and others give them."""


def did_you_mean(key: tuple[str, ...]) -> str:
    """Return `; did you mean ...?` with the known key that was meant by an unknown key.

    A key of the same section is preferred to keys of other sections. Return "" if no key is like
    the unknown one.

    Args:
        key: a section and a key, or a key alone.
    """
    section = key[0] if len(key) == 2 else ""
    name = key[-1]
    fields = SECTIONS[section].model_fields if section in SECTIONS else {}
    meant = NAMES_ELSEWHERE.get(name)
    if meant is not None and not _is_for_sampling_only(meant, section):
        # `NAMES_ELSEWHERE` has keys with their sections. The message leaves out the same section.
        return _hint(meant.removeprefix(f"{section}."))
    # The key is right, but was given as an option, such as `--train.max_steps`.
    if name in fields:
        return _hint(f"{section}.{name}")
    # `train.loss_terms.z_loss=1e-4` has to be written as `train.loss_terms={z_loss: 1e-4}`.
    dict_key, _, inner_key = name.partition(".")
    if inner_key and dict_key in fields and _takes_dict(fields[dict_key].annotation):
        return _hint(f"'{section}.{dict_key}={{{inner_key}: ...}}'")
    key_of_section = _closest(name, fields)
    if key_of_section is not None:
        return _hint(key_of_section)
    # A section may be meant too. A key is preferred to a section of the same name.
    known = {section_name: section_name for section_name in SECTIONS}
    known.update(_keys())
    closest_name = _closest(name, known)
    return "" if closest_name is None else _hint(known[closest_name])


def option_meant(name: str, options: Iterable[str], with_keys: bool) -> str | None:
    """Return the option that was probably meant by an unknown `--name`; None if none is like it.

    Args:
        name: the unknown option, without its dashes.
        options: the options of the command, with their dashes.
        with_keys: whether the command has overrides, so that a `section.key` may be meant.
    """
    own_options = {option.strip("-"): option for option in options}
    # The option or key that each known name means. If a name has several meanings, the one that is
    # added last counts, so that the command's own options come last.
    meant: dict[str, str] = {}
    if with_keys:
        for word, key in NAMES_ELSEWHERE.items():
            # Keys of `sample` are options of the commands, which are added below.
            if not key.startswith("sample."):
                meant[word] = key
        meant.update(_keys())
    for word, option in _options_elsewhere().items():
        if option in own_options.values():
            meant[word] = option
    meant.update(own_options)
    # Options are spelled with hyphens and keys with underscores, which users mix up.
    hyphenated = {word.replace("_", "-"): target for word, target in meant.items()}
    closest_word = _closest(name.replace("_", "-"), hyphenated)
    return None if closest_word is None else hyphenated[closest_word]


def _options_elsewhere() -> dict[str, str]:
    """Return the options of this package by the names that others give them."""
    options = {}
    for word, key in NAMES_ELSEWHERE.items():
        section, _, name = key.partition(".")
        if section == "sample":  # each key of `sample` is an option too
            options[word] = f"--{name.replace('_', '-')}"
    return {**options, **OPTIONS_ELSEWHERE}


def _is_for_sampling_only(key: str, section: str) -> bool:
    """Return whether a key of `sample` cannot be meant, since another section was named.

    A word such as `length` may mean other things in other sections.
    """
    return key.startswith("sample.") and section not in ("", "sample")


def _keys() -> dict[str, str]:
    """Return `section.key` by key, with the first section if several sections have the key."""
    keys: dict[str, str] = {}
    for section, model in SECTIONS.items():
        for key in model.model_fields:
            keys.setdefault(key, f"{section}.{key}")
    return keys


def _takes_dict(kind: Any) -> bool:
    """Return whether a type is a dict, or a union or an `Annotated` with a dict."""
    return get_origin(kind) is dict or any(map(_takes_dict, get_args(kind)))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the known name that is most like a name, or else ""."""
    closest_name = _closest(name, known)
    return "" if closest_name is None else _hint(closest_name)


def _closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a name; None if no known name is like it."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return matches[0] if matches else None


def _hint(name: str) -> str:
    return f"; did you mean {name}?"
