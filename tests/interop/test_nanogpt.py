"""Checkpoints in nanoGPT's format: computed by GPT-2 of transformers with the same weights."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from gpt.interop.nanogpt import import_checkpoint
from gpt.system.errors import InputError
from tiny import CORPUS

CHARS = sorted(set(CORPUS))
META = {"vocab_size": len(CHARS), "itos": dict(enumerate(CHARS)), "stoi": {c: i for i, c in enumerate(CHARS)}}


def reference(vocab_size: int) -> Any:
    torch.manual_seed(0)
    sizes = {"n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4, "activation_function": "gelu"}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocab_size, **sizes)).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def nanogpt_weights(model: Any) -> dict[str, Tensor]:
    """The same in nanoGPT's format: linear layers are (out, in)."""
    transposed = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    return {k: v.T.contiguous() if k.endswith(transposed) else v for k, v in model.state_dict().items()}


def write(folder: Path, weights: dict[str, Tensor], vocab_size: int, meta: object = META, **changes: object) -> Path:
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 16, "bias": True, "dropout": 0.1}
    content = {"model": weights, "model_args": sizes | {"vocab_size": vocab_size} | changes, "iter_num": 7}
    content |= {"optimizer": {"state": {}}, "best_val_loss": torch.tensor(1.5), "config": {}}
    torch.save(content, folder / "ckpt.pt")
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return folder / "ckpt.pt"


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
@torch.no_grad()
def test_logits_are_those_of_gpt2(prefix: str, tmp_path: Path) -> None:
    theirs = reference(len(CHARS))
    weights = {prefix + name: tensor for name, tensor in nanogpt_weights(theirs).items()}
    model, tokenizer = import_checkpoint(write(tmp_path, weights, len(CHARS)))
    assert tokenizer.decode(tokenizer.encode(CORPUS)) == CORPUS
    idx = torch.as_tensor(tokenizer.encode(CORPUS[:16]).astype("int64"))[None]
    torch.testing.assert_close(model(idx), theirs(idx).logits, atol=1e-5, rtol=0)


def test_a_model_without_biases_has_none(tmp_path: Path) -> None:
    weights = {k: v for k, v in nanogpt_weights(reference(len(CHARS))).items() if not k.endswith(".bias")}
    model, _ = import_checkpoint(write(tmp_path, weights, len(CHARS), bias=False))
    assert not any(name.endswith("bias") for name in model.state_dict())


class Payload:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("victim", ["ckpt.pt", "meta.pkl"])
def test_a_hostile_pickle_runs_nothing(victim: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    payload = Payload(touched)
    file = write(tmp_path, nanogpt_weights(reference(len(CHARS))), len(CHARS))
    if victim == "meta.pkl":
        (tmp_path / victim).write_bytes(pickle.dumps(META | {"itos": payload}))
    else:
        torch.save({"model": {}, "model_args": payload}, file)
    with pytest.raises(InputError, match=rf"{victim} is refused: it (would|wants to) run ") as caught:
        import_checkpoint(file)
    assert "weights_only" not in str(caught.value)
    assert not touched.exists()
    pickle.loads(pickle.dumps(payload))  # it would have worked
    assert touched.exists()


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({}, "is not a meta.pkl of characters"),
        ({"itos": {0: "a", 2: "b"}}, "is not a meta.pkl of characters, a dict with itos: characters by id, from 0$"),
        ({"itos": 3}, "is not a meta.pkl of characters, a dict with itos: characters by id, from 0$"),
        (META | {"stoi": {c: i + 1 for i, c in enumerate(CHARS)}}, "its stoi is not the inverse of its itos$"),
        ({"itos": dict(enumerate(CHARS[5:]))}, "has 29 tokens, .* 24 characters; it is of another dataset"),
        ({"itos": {0: "b", 1: "a"}}, "does not number its characters in sorted order"),
        ({"itos": dict(enumerate("0123456789abcdefghijklmnopqrstuvwxyz"))}, "has 29 tokens, .* 36 characters"),
        ([], "is not a meta.pkl of characters"),
    ],
)
def test_characters_that_do_not_fit_are_refused(meta: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        import_checkpoint(write(tmp_path, nanogpt_weights(reference(len(CHARS))), len(CHARS), meta))


@pytest.mark.parametrize("content", [b"", b"nothing", None])
def test_a_file_that_is_no_checkpoint_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = write(tmp_path, nanogpt_weights(reference(len(CHARS))), len(CHARS))
    if content is None:
        torch.save({"model": {}}, file)
    else:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"ckpt\.pt"):
        import_checkpoint(file)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no .*ckpt\.pt"):
        import_checkpoint(tmp_path / "ckpt.pt")
    file = write(tmp_path, nanogpt_weights(reference(len(CHARS))), len(CHARS))
    (tmp_path / "meta.pkl").unlink()
    with pytest.raises(InputError, match=r"there is no .*meta\.pkl"):
        import_checkpoint(file)


@pytest.mark.parametrize(
    "changes",
    [{"n_layer": 10**9}, {"n_layer": 0}, {"n_embd": 2**62}, {"n_head": 3}, {"dropout": 10**400}, {"bias": "x"}],
    ids=str,
)
def test_impossible_sizes_are_one_line(changes: dict[str, object], tmp_path: Path) -> None:
    file = write(tmp_path, nanogpt_weights(reference(len(CHARS))), len(CHARS), **changes)
    with pytest.raises(InputError, match=r"ckpt\.pt") as caught:
        import_checkpoint(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value", [torch.ones(()), "text", torch.ones(3, 4).to_sparse(), torch.ones(2, dtype=torch.int64)]
)
def test_what_is_no_matrix_is_one_line(value: object, tmp_path: Path) -> None:
    weights: dict[str, Any] = nanogpt_weights(reference(len(CHARS)))
    for name in ("transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"):
        file = write(tmp_path, weights | {name: value}, len(CHARS))
        with pytest.raises(InputError) as caught:
            import_checkpoint(file)
        assert "\n" not in str(caught.value)
