"""Checkpoints in nanoGPT's format: computed by GPT-2 of transformers with the same weights."""

import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from gpt.extras.export.nanogpt import import_checkpoint
from gpt.system.errors import InputError
from tiny import CORPUS

CHARS = sorted(set(CORPUS))
META = {
    "vocab_size": len(CHARS),
    "itos": dict(enumerate(CHARS)),
    "stoi": {c: i for i, c in enumerate(CHARS)},
}
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


@pytest.fixture(scope="module")
def theirs() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {
            "n_positions": 16,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "activation_function": "gelu",
        }
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=len(CHARS), **sizes)
        ).eval()
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@pytest.fixture
def weights(theirs: Any) -> dict[str, Tensor]:
    """The same in nanoGPT's format: linear layers are (out, in)."""
    return {
        k: v.T.contiguous() if k.endswith(TRANSPOSED) else v for k, v in theirs.state_dict().items()
    }


def write(folder: Path, weights: dict[str, Any], meta: object = META, **changes: object) -> Path:
    sizes = {
        "n_layer": 2,
        "n_head": 4,
        "n_embd": 32,
        "block_size": 16,
        "bias": True,
        "dropout": 0.1,
    }
    content = {
        "model": weights,
        "model_args": sizes | {"vocab_size": len(CHARS)} | changes,
        "iter_num": 7,
    }
    content |= {"optimizer": {"state": {}}, "best_val_loss": torch.tensor(1.5), "config": {}}
    torch.save(content, folder / "ckpt.pt")
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return folder / "ckpt.pt"


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
@torch.no_grad()
def test_logits_are_those_of_gpt2(
    prefix: str, theirs: Any, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    model, tokenizer = import_checkpoint(
        write(tmp_path, {prefix + name: tensor for name, tensor in weights.items()})
    )
    assert tokenizer.decode(tokenizer.encode(CORPUS)) == CORPUS
    idx = torch.as_tensor(tokenizer.encode(CORPUS[:16]).astype("int64"))[None]
    torch.testing.assert_close(model(idx), theirs(idx).logits, atol=1e-5, rtol=0)
    without = {name: tensor for name, tensor in weights.items() if not name.endswith(".bias")}
    model, _ = import_checkpoint(write(tmp_path, without, bias=False))
    assert not any(name.endswith("bias") for name in model.state_dict())


class Payload:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("victim", ["ckpt.pt", "meta.pkl"])
def test_hostile_pickle_runs_nothing(
    victim: str, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    payload = Payload(touched)
    file = write(tmp_path, weights)
    if victim == "meta.pkl":
        (tmp_path / victim).write_bytes(pickle.dumps(META | {"itos": payload}))
    else:
        torch.save({"model": {}, "model_args": payload}, file)
    with pytest.raises(
        InputError, match=rf"{victim} is refused: it (would|wants to) run "
    ) as caught:
        import_checkpoint(file)
    assert "weights_only" not in str(caught.value)
    assert not touched.exists()
    pickle.loads(pickle.dumps(payload))  # it would have worked
    assert touched.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"\x80\x02}r" + (1 << 30).to_bytes(4, "little") + b".",
            "numbers more values than it has bytes",
        ),
        (b"}p4000000000\n.", "numbers more values than it has bytes"),
        # Tuples nested so deeply that their hash would overflow the stack and end the process.
        (
            b"\x80\x02})" + b"\x85" * 300_000 + b"K\x01s.",
            "does not need",
        ),
        *(
            (bytes([0x80, 5, code]) + (1 << 40).to_bytes(8, "little") + b".", "")
            for code in b"\x8d\x8e\x95\x96"
        ),
    ],
    ids=range(7),
)
def test_small_pickle_that_would_take_gigabytes_is_refused(
    content: bytes, message: str, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    file = write(tmp_path, weights)
    (tmp_path / "meta.pkl").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=rf"meta\.pkl is .*{message}"):
        import_checkpoint(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ([], "is not a meta.pkl of characters"),
        ({}, "is not a meta.pkl of characters"),
        (
            {"itos": {0: "a", 2: "b"}},
            "is not a meta.pkl of characters, a dict with itos: characters by id, from 0$",
        ),
        (
            META | {"stoi": {c: i + 1 for i, c in enumerate(CHARS)}},
            "its stoi is not the inverse of its itos$",
        ),
        (
            {"itos": dict(enumerate(CHARS[5:]))},
            "has 29 tokens, .* 24 characters; it is of another dataset",
        ),
        ({"itos": {0: "b", 1: "a"}}, "does not number its characters in sorted order"),
    ],
)
def test_characters_that_do_not_fit_are_refused(
    meta: object, message: str, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        import_checkpoint(write(tmp_path, weights, meta))


@pytest.mark.parametrize(
    ("name", "content"),
    [("ckpt.pt", b""), ("ckpt.pt", {"model": {}}), ("ckpt.pt", None), ("meta.pkl", None)],
)
def test_missing_or_other_file_is_named(
    name: str, content: Any, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    file = write(tmp_path, weights)
    (tmp_path / name).unlink()
    if content is not None:
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(InputError, match=rf"{'there is no .*' if content is None else ''}{name}"):
        import_checkpoint(file)
