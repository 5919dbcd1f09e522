"""Quantized copies of a run, its exports, and models of other programs: what the commands make of
each other's work.
"""

import json
import pickle
from pathlib import Path

import pytest
import torch

from cli.conftest import Call, Refuse
from gpt.checkpoint import read_checkpoint
from tiny import CORPUS


def test_quantized_checkpoint_holds_integers_and_no_training(
    here: Path, tmp_path: Path, run: Call
) -> None:
    int8 = tmp_path / "int8"
    said = run(f"quantize --checkpoint runs/tiny --output {int8}").err
    assert f"15.0 KiB of weights quantized to 6.56 KiB in {int8}" in said
    checkpoint = read_checkpoint(int8)
    assert checkpoint.model["h.0.mlp.c_fc.integers"].dtype == torch.int8
    assert "h.0.mlp.c_fc.weight" not in checkpoint.model
    assert checkpoint.training == {}
    folders = int8, next(Path("runs/tiny/checkpoints").iterdir())
    small, large = ((folder / "model.safetensors").stat().st_size for folder in folders)
    assert small < large
    said = run(f"sample --checkpoint {int8} --max-new-tokens 3 --stats").err
    assert ", int8 weights, fp32 cache: 3 tokens" in said
    checkpoints = ("runs/tiny", int8, "runs/tiny --weights int8")
    plain, saved, fly = (run(f"evaluate --checkpoint {each}").json["loss"] for each in checkpoints)
    assert saved == fly == pytest.approx(plain, abs=0.01)


def test_folders_that_a_name_needs_are_made(here: Path, tmp_path: Path, run: Call) -> None:
    run(f"quantize --checkpoint runs/tiny --output {tmp_path / 'new' / 'int8'}")
    run(
        "export --to html --checkpoint runs/tiny --output "
        f"{tmp_path / 'other' / 'new' / 'tiny.html'}"
    )
    assert (tmp_path / "other" / "new" / "tiny.html").is_file()


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_weights_saved_and_made_on_the_fly_give_the_same_text(
    weights: str, here: Path, tmp_path: Path, run: Call
) -> None:
    saved = tmp_path / weights
    run(f"quantize --checkpoint runs/tiny --weights {weights} --output {saved}")
    ways = (
        f"{saved}",
        f"runs/tiny --weights {weights}",
        f"{saved} --weights {weights}",
        f"{saved} --backend eager",
    )
    one, *others = (
        run(f"sample --prompt It --max-new-tokens 40 --checkpoint {way}").out for way in ways
    )
    assert others == [one] * 3


def test_page_is_written_and_its_size_is_said(here: Path, tmp_path: Path, run: Call) -> None:
    page = tmp_path / "tiny.html"
    sizes: list[int] = []
    for weights, end in (("int8", 3), ("fp16", 6), ("float32", 6)):
        checkpoint = f"runs/tiny/checkpoints/step-{end:06d}"
        line = f"export --to html --checkpoint {checkpoint} --output {page} --weights {weights}"
        assert f"written to {page}" in run(line).err
        text = page.read_text(encoding="utf-8")
        # The name comes first, since pages of two runs on one text share the headline.
        assert "<title>tiny · A computer learned to write from corpus.txt in " in text
        assert "<h1>A computer learned to write from corpus.txt in " in text
        assert "tiny, a small GPT" in text
        data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
        assert weights in {tensor["format"] for tensor in data["tensors"]}
        learning = data["learning"]
        assert (
            learning["run"]["snapshots"] == [*map(int, learning["snapshots"])] == [*range(end + 1)]
        )
        assert learning["snapshots"]["0"]["sample"]
        about = data["facts"]["about"]
        assert (about["corpus"], about["characters"]) == ("corpus.txt", len(CORPUS) * 30)
        assert about["choices"] > 1
        assert [path.name for path in tmp_path.iterdir()] == ["tiny.html"]
        sizes.append(page.stat().st_size)
        page.unlink()
    assert sizes == sorted(set(sizes))


def test_file_for_llama_cpp_is_written(here: Path, tmp_path: Path, run: Call) -> None:
    said = run(f"export --to gguf --checkpoint runs/tiny --output {tmp_path}/x.gguf").err
    assert f"llama-cli -m {tmp_path}/x.gguf runs it" in said
    assert (tmp_path / "x.gguf").read_bytes().startswith(b"GGUF")


def test_exported_folder_is_imported_and_exported_again(own: Path, run: Call) -> None:
    assert (
        "from_pretrained('hf') loads it"
        in run("export --to hf --checkpoint runs/tiny --output hf").err
    )
    assert "back: " in run("import_model --from hf --input hf --output back").err
    for backend in ("auto", "eager"):
        line = f"sample --prompt It --max-new-tokens 40 --backend {backend} --checkpoint"
        assert run(line, "back").out == run(line, "runs/tiny").out
    Path("text.txt").write_text("It was the best of rooms", encoding="utf-8")
    assert run("evaluate --checkpoint back --text-file text.txt").json["tokens"] == 23
    run("explain lens --checkpoint back --prompt 'It was'")
    run("export --to hf --checkpoint back --output again")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert Path("again", name).read_bytes() == Path("hf", name).read_bytes()
    Path("hf/generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    run("import_model --from hf --input hf --output ends")
    assert read_checkpoint(Path("ends")).config.sample.end_id == 2


def test_run_of_nanogpt_is_imported(tmp_path: Path, run: Call) -> None:
    sizes = {
        "n_layer": 1,
        "n_head": 2,
        "n_embd": 8,
        "block_size": 16,
        "bias": False,
        "vocab_size": 4,
    }
    shapes = {"wte": (4, 8), "wpe": (16, 8), "ln_f": (8,), "h.0.ln_1": (8,), "h.0.ln_2": (8,)}
    shapes |= {"h.0.attn.c_attn": (24, 8), "h.0.attn.c_proj": (8, 8)}
    shapes |= {"h.0.mlp.c_fc": (32, 8), "h.0.mlp.c_proj": (8, 32)}
    weights = {f"transformer.{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    torch.save({"model": weights, "model_args": sizes}, tmp_path / "ckpt.pt")
    (tmp_path / "elsewhere.pkl").write_bytes(pickle.dumps({"itos": dict(enumerate("\nItx"))}))
    run(
        f"import_model --from nanogpt --input {tmp_path}/ckpt.pt --meta "
        f"{tmp_path}/elsewhere.pkl --output {tmp_path}/a"
    )
    assert read_checkpoint(tmp_path / "a").config.model.vocab_size == 4
    assert run(f"sample --checkpoint {tmp_path}/a --prompt It --max-new-tokens 40").out.startswith(
        "It"
    )


def test_what_is_written_without_output_is_named_after_the_run(
    own: Path, run: Call, refuse: Refuse
) -> None:
    for to, name in (
        ("html", "tiny.html"),
        ("png", "tiny.png"),
        ("hf", "tiny-hf"),
        ("gguf", "tiny.gguf"),
    ):
        assert f"written to {name}," in run(f"export --to {to}").err
        assert Path(name).exists()
        assert f"{name} exists already; choose another --output" in refuse(f"export --to {to}")
    assert Path("tiny.png").read_bytes().startswith(b"\x89PNG")
    run("plot runs/tiny")
    assert run("plot runs/tiny runs/tiny").out == "tiny-tiny-loss.png\n"
    assert Path("tiny-loss.png").read_bytes().startswith(b"\x89PNG")
    assert "runs/tiny-int4" in run("quantize --checkpoint runs/tiny --weights int4").err
    assert "runs/tiny-int4 exists already" in refuse(
        "quantize --checkpoint runs/tiny --weights int4"
    )
    assert "runs/tiny-hf: " in run("import_model --from hf --input tiny-hf").err
    line = "sample --prompt It --max-new-tokens 40 --checkpoint"
    assert run(line, "runs/tiny-hf").out == run(line, "runs/tiny").out


def test_export_names_the_sampling_defaults_that_it_lacks(workplace: Path, run: Call) -> None:
    keys = "sample.stop=[door] sample.end_id=3 sample.repetition_penalty=1.2 sample.temperature=0.5"
    run(f"train --config tiny.yaml train.max_steps=1 {keys}")
    stop = 'sample.stop=["door"]'
    penalty = "sample.repetition_penalty=1.2"
    heat = "sample.temperature=0.5"
    for to, name, lost in (
        ("html", "tiny.html", f"{penalty}, {stop}"),
        ("hf", "tiny-hf", stop),
        ("gguf", "tiny.gguf", f"{heat}, {penalty}, {stop}"),
    ):
        assert run(f"export --to {to}").err.splitlines()[-1] == f"not in {name}: {lost}"
