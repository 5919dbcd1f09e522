"""The key that was probably meant by an unknown one."""

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
    """Return `; did you mean ...?` with the nearest known key, in its section or else another; ""
    if there is none.
    """
    section, name = key[0] if len(key) == 2 else "", key[-1]
    own = list(SECTIONS[section].model_fields) if section in SECTIONS else []
    meant = NAMES_ELSEWHERE.get(name)
    if meant is not None and not _is_for_sampling_only(meant, section):
        return _hint(meant.removeprefix(f"{section}."))
    if name in own:
        return _hint(f"{section}.{name}")
    mapping, _, inner = name.partition(".")
    if inner and mapping in own and _takes_dict(SECTIONS[section].model_fields[mapping].annotation):
        return _hint(f"'{section}.{mapping}={{{inner}: ...}}'")
    if near := difflib.get_close_matches(name, own, n=1):
        return _hint(near[0])
    known = {name: name for name in SECTIONS} | _keys()
    near = difflib.get_close_matches(name, known, n=1)
    return _hint(known[near[0]] if near else None)


def option_meant(name: str, options: Iterable[str], with_keys: bool) -> str | None:
    """Return the option that was probably meant by an unknown `--name`, or with `with_keys` perhaps
    a `section.key`.
    """
    known = {option.strip("-"): option for option in options}
    sampling = {
        word: _option(key) for word, key in NAMES_ELSEWHERE.items() if key.startswith("sample.")
    }
    elsewhere = {**sampling, **OPTIONS_ELSEWHERE}
    training = {word: key for word, key in NAMES_ELSEWHERE.items() if not key.startswith("sample.")}
    meant = {**training, **_keys()} if with_keys else {}
    meant |= {word: option for word, option in elsewhere.items() if option in known.values()}
    meant |= known
    spelled = {word.replace("_", "-"): each for word, each in meant.items()}
    near = difflib.get_close_matches(name.replace("_", "-"), spelled, n=1)
    return spelled[near[0]] if near else None


def _is_for_sampling_only(key: str, section: str) -> bool:
    """Return whether a key is one of `sample`, and was not looked for there: a length is many
    things elsewhere.
    """
    return key.startswith("sample.") and section not in ("", "sample")


def _option(key: str) -> str:
    """Return the option of a command that stands for a key."""
    return f"--{key.partition('.')[2].replace('_', '-')}"


def _keys() -> dict[str, str]:
    """Return `section.key` by key; that of the first section where several have it."""
    return {
        key: f"{section}.{key}"
        for section in reversed(SECTIONS)
        for key in SECTIONS[section].model_fields
    }


def _takes_dict(kind: Any) -> bool:
    return get_origin(kind) is dict or any(map(_takes_dict, get_args(kind)))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the nearest of some names; "" if there is none."""
    return _hint(next(iter(difflib.get_close_matches(name, list(known), n=1)), None))


def _hint(name: str | None) -> str:
    return f"; did you mean {name}?" if name else ""
