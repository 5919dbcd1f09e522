"""What /api/runs tells of a run's snapshots."""

from pathlib import Path

import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.views.snapshots import map_embedding, nearest_tokens
from gpt.training.snapshots import take_snapshot
from http_server import Serve
from tiny import sharp_model


def test_a_snapshot_is_seen_in_the_plane_of_another(trained: Path, tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "tiny").symlink_to(trained / "runs" / "tiny")
    folder = tmp_path / "run" / "snapshots"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_bytes((trained / "runs/tiny/config.yaml").read_bytes())
    tokenizer = CharTokenizer("abcdef")
    models = [sharp_model(seed=seed, vocab_size=6) for seed in (0, 1)]
    for step, model in zip((0, 7), models, strict=True):
        content = take_snapshot(model, tokenizer, torch.tensor([0, 1, 2]), "abc")
        (folder / f"step-{step:06d}.safetensors").write_bytes(content)
    (folder / "step-000008.safetensors").write_bytes(b"damaged")
    other = take_snapshot(sharp_model(vocab_size=5), CharTokenizer("abcde"), torch.tensor([0]), "")
    (folder / "step-000009.safetensors").write_bytes(other)
    with serve(folder=tmp_path) as site:
        assert site.get("/api/runs/run").json()["snapshots"] == [0, 7, 8, 9]
        shown = site.get("/api/runs/run/snapshots/0?basis=7").json()
        assert (shown["step"], shown["sample"], shown["line"], shown["tokens"]) == (0, "abc", [*"abc"], [*"abcdef"])
        first, last = (model.wte.weight.detach().half().float() for model in models)
        assert torch.allclose(torch.tensor(shown["points"]), map_embedding(first, last), atol=1e-3)
        assert shown["nearest"] == nearest_tokens(first, 4)
        assert [len(heads) for heads in shown["attention"]] == [models[0].config.n_head] * models[0].config.n_layer
        assert shown["points"] == [[round(x, 3), round(y, 3)] for x, y in shown["points"]]
        for path, status in {"0?basis=3": 404, "3?basis=0": 404, "0?basis=9": 400}.items():
            assert site.get(f"/api/runs/run/snapshots/{path}").status_code == status, path
        for path in ("9" * 260 + "?basis=0", "0?basis=" + "9" * 260, "0?basis=-1", "-1?basis=0", "x?basis=0"):
            assert site.get(f"/api/runs/run/snapshots/{path}").status_code == 400, path
        damaged = site.get("/api/runs/run/snapshots/8?basis=7")
        assert (damaged.status_code, "damaged snapshot" in damaged.json()["error"]["message"]) == (500, True)
        assert str(tmp_path) not in damaged.text
