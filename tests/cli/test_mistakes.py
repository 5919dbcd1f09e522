"""Every command: a mistake ends with 2 and one line that names it, prints nothing else and writes
nothing.
"""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from cli.conftest import Refuse
from gpt.cli import export, quantize, serve

LONG = "a" * 17
NO_NAME = "x" * 300
STEERING = "'a\nerror: all is well\x1b[2J'"
LARGE = (
    "error: out of memory; lower train.batch_size or --batch-size, model.block_size or the "
    "size of the model ("
)
NEW = "train --config tiny.yaml run.name=new"
IN8 = "--checkpoint int8"
POEM = "To be, or not to be, that is the question: " * 50
SHORT = (
    "error: 'To be, or not to be, that is the questio...' looks "
    "like the text itself, not like a path; "
)
LINES = [
    *(
        (f"{line} '{POEM}'", f"{SHORT}{remedy}")
        for line, remedy in (
            ("train", "save it in a file and give that"),
            ("make_config", "save it in a file and give that"),
            ("train --config", "give a YAML file"),
            ("sample --checkpoint", "give a run folder"),
            ("sample --prompts-file", "save it in a file and give that, or give - and pipe it in"),
            ("evaluate --text-file", "save it in a file and give that, or give - and pipe it in"),
            (f"{NEW} --resume", "give a run folder"),
            ("plot --output a.png", "give a run folder"),
        )
    ),
    (f"export --to html --output '{POEM}'", "...: File name too long"),
    ("evaluate --batch-size 0", "--batch-size: 0, expected 1 to 1,000,000"),
    ("evaluate --per-char", "--per-char needs --text-file"),
    ("evaluate --text-file gone.txt", "cannot read gone.txt"),
    ("evaluate --text-file corpus.txt --split val", "--split has no effect with --text-file"),
    ("evaluate --split test", "has no test split; the run was made with data.test_fraction 0"),
    ("evaluate --checkpoint ''", "expected a value, got an empty string"),
    (f"quantize --checkpoint runs/tiny --output {NO_NAME}", NO_NAME),
    ("serve --port 70000", "--port: 70000, expected 0 to 65,535"),
    ("serve --drain-seconds inf", "--drain-seconds: inf"),
    ("serve --host no.such.host.", "cannot listen at no.such.host."),
    (
        "serve --allow-host=http://gpu.lan",
        "expected a name such as gpu-box.lan, without scheme and port, got 'http://gpu",
    ),
    (
        "serve --allow-origin=chat.lan",
        "expected * or a site such as https://chat.lan, without path, got 'chat.lan'",
    ),
    (
        f"sample --checkpoint runs/tiny --seed {2**32 - 1} --num-samples 2",
        "--seed is 4294967295, and sample i has",
    ),
    ("sample --stop ''", "--stop"),
    ("sample --beam 0", "--beam: 0, expected 1 to 10,000"),
    ("sample --greedy --temperature 0.5", "--temperature: not allowed with argument --greedy"),
    (
        "sample --device cuda:99999999999",
        "cuda:99999999999, expected auto, cpu, cuda, cuda:N or mps",
    ),
    (f"sample --prompt {LONG} --checkpoint runs/tiny", "17 tokens, more than the window of 16"),
    (
        f"sample --prompt {LONG} --beam 2 --checkpoint runs/tiny",
        "17 tokens, more than the window of 16",
    ),
    (
        "sample --prompt a€b¥",
        "error: the prompt has characters outside the vocabulary of 29: '€' at 1, '¥' at 3; leave",
    ),
    (
        "sample --prompts-file prompts.txt",
        "error: prompt 2 of 2: the prompt has characters outside the vocabulary of",
    ),
    (
        "sample --beam 2 --prompts-file prompts.txt",
        "or pass --unknown drop or replace (unknown= of CharTokenizer)",
    ),
    ("sample --interactive --json", "--json has no effect with --interactive"),
    ("sample --beam 2 --temperature 0.5", "--temperature has no effect with --beam"),
    ("sample --length-penalty 2", "--length-penalty has no effect with sampling, without --beam"),
    ("sample --logprobs 0", "--logprobs has no effect with text output, without --json"),
    *(
        (f"{line} 3", f"; did you mean {meant}?")
        for line, meant in (
            ("sample --lenght", "--max-new-tokens"),
            ("sample --temp", "--temperature"),
            ("sample --top_k", "--top-k"),
            ("sample --model", "--checkpoint"),
            ("sample -p", "--prompt"),
            ("train --config tiny.yaml --resum", "--resume"),
            ("sample --device gpu --seed", "cuda"),
        )
    ),
    *(
        (
            f"train --config tiny.yaml --{name} 3",
            f"(keys of the configuration have no dashes; did you mean {key}?)",
        )
        for name, key in (
            ("steps", "train.max_steps"),
            ("epochs", "train.max_steps"),
            ("batch-size", "train.batch_size"),
            ("lr", "optim.learning_rate"),
            ("device", "run.device"),
            ("seed", "run.seed"),
        )
    ),
    (
        "sample ROMEO:",
        (
            "unrecognized arguments: ROMEO:; a prompt is given by --prompt; a run is given by "
            "--checkpoint;"
        ),
    ),
    (
        "evaluate runs/tiny",
        "unrecognized arguments: runs/tiny; a run is given by --checkpoint; see",
    ),
    (
        "train corpus.txt train.max_steps 5",
        "train.max_steps has no value; write it as train.max_steps=VALUE",
    ),
    (
        "train --steps 10",
        "--steps (keys of the configuration have no dashes; did you mean train.max_steps?); see",
    ),
    (
        "explain attention --prompt It --edit blocks.9.attn.hook_z=0",
        "the model has 1 layer, number 0",
    ),
    ("train --config tiny.yaml --max_iters=5", "have no dashes; did you mean train.max_steps?)"),
    (f"train --config tiny.yaml run.name={NO_NAME}", NO_NAME),
    *((f"{line} {STEERING}", "all is well") for line in ("train --config", "evaluate --text-file")),
    ("explain", "VIEW"),
    ("explain params --published gpt2 --nope model.n_layer=3", "unrecognized arguments: --nope"),
    ("explain params --published gpt2 --config a.yaml", "--published and --config are two models"),
    (
        "explain params --config tiny.yaml model.n_embd=2000000000 model.n_head=1",
        "out of memory; lower",
    ),
    ("explain shapes --config tiny.yaml --seq 17", "--seq is 17, expected 1 to 16 (block_size)"),
    (
        "explain flops --published gpt2 --prompt-tokens 1024",
        "is 1,024, expected 1 to 1,023 (what block_size leaves)",
    ),
    (
        "explain flops --published gpt2 model.block_size=1 --new-tokens 1",
        "block_size 1 has no room for new tokens",
    ),
    ("explain attention --prompt It --layer 1", "--layer is 1, expected 0 (layers of the model)"),
    (
        "explain attention --prompt It --layer 0 --head 2",
        "--head is 2, expected 0 to 1 (heads of a layer)",
    ),
    ("explain attention --prompt It --head 0", "--head needs --layer"),
    (
        "explain attention --prompt 'It was the best of rooms'",
        "the prompt has 24 tokens, expected 1 to 16",
    ),
    ("explain attention --prompt 'It wäs'", "characters outside the vocabulary of 29: 'ä' at 4"),
    *(
        (f"explain attention --prompt 'It was' --edit {edit}", words)
        for edit, words in (
            (
                "blocks.0.attn.hook_zz=0",
                "unknown activation blocks.0.attn.hook_zz; did you mean blocks.0.attn.hook_z?",
            ),
            ("blocks.0.attn.hook_z:2=0", "blocks.0.attn.hook_z has heads 0 to 1, not 2"),
            ("blocks.0.attn.hook_z:one=0", "expected NAME=FACTOR or NAME:HEAD=FACTOR"),
            (
                "blocks.0.attn.hook_q=1e38 --edit blocks.0.attn.hook_attn_scores=1e38",
                "values that are not finite",
            ),
        )
    ),
    (
        "explain lens --prompt It --position 2",
        "--position is 2, expected 0 to 1 (positions of the prompt)",
    ),
    (
        "explain lens --prompt It --edit logits=0",
        "a lens reads the streams, and logits comes later",
    ),
    (
        "train --print-config",
        "nothing to train on: give a text, such as my.txt, --config FILE or --resume RUN",
    ),
    (f"{NEW} data.path=gone.txt", "gone.txt: no such file"),
    (f"{NEW} data.path=bad.txt", "not UTF-8: byte 5"),
    (f"{NEW} run.device=cuda:99", "cuda:99"),
    (f"{NEW} run.dir=corpus.txt", "cannot write the run folder"),
    (f"{NEW} data.dir=corpus.txt", "cannot write corpus.txt/tokens"),
    (f"{NEW} model.n_embd=2000000000", LARGE),
    (f"{NEW} data.source=shakespeare data.path=null --offline", "tinyshakespeare.txt"),
    ("train --config tiny.yaml run.dir=. run.name=int8", "exists already"),
    (
        "train --config tiny.yaml run.dir=. run.name=int8 --resume auto",
        "is a checkpoint, not a run",
    ),
    (f"{NEW} --resume int8", "cannot be trained"),
    ("train gone.txt", "gone.txt: no such file"),
    ("train corpus.txt data.path=other.txt", "data.path is given twice"),
    (
        "train corpus.txt other.txt",
        "2 texts are given; name their folder, or put a pattern in quotes",
    ),
    ("train corpus.txt --config tiny.yaml", "--config and the text corpus.txt are given"),
    ("train tiny.yaml", "tiny.yaml is a configuration, not a text; train by it with: "),
    ("train shakespeare", " train --config shakespeare"),
    ("train train.max_steps", "nothing to train on"),
    ("train train.txt", "train.txt: no such file"),
    (
        "train train.max_steps --config tiny.yaml",
        "'train.max_steps' is not of the form section.key=value",
    ),
    ("make_config corpus.txt data.path=other.txt", "data.path"),
    ("make_config corpus.txt model.block_size=5000", "block_size"),
    ("make_config corpus.txt --output short.txt", "exists already"),
    ("prepare_data --config tiny.yaml data.path=bad.txt data.tokenizer=bpe", "not UTF-8: byte 5"),
    *(
        (f"{line} --plugin mine.py", "--plugin")
        for line in (
            "plot runs/tiny --output a.png",
            "import_model --from hf --input hf --output b",
            "make_config a.txt",
        )
    ),
    *(
        (f"plot runs/tiny --output {name}", name)
        for name in (".", "loss", "loss.tiff", "runs", "gone/loss.png")
    ),
    ("sample --prompts-file empty.txt", "error: empty.txt holds no prompt"),
    ("export --to gguf --output short.txt/x", "cannot write short.txt/x"),
    *(
        (
            f"{line} --output -",
            "argument --output: -, expected a name; nothing is written to standard output",
        )
        for line in (
            "export --to html",
            "quantize",
            "plot runs/tiny",
            "make_config corpus.txt",
            "import_model --from hf --input hf",
        )
    ),
    ("export --to hf --output x --weights q8_0", "--weights q8_0 is not for --to hf"),
    (
        "export --to hf --output short.txt",
        "short.txt exists already; choose another --output, or remove it",
    ),
    ("export --to html --output pipe", "pipe"),
    *(
        (f"export --to {to} {IN8} --output x", "cannot be exported: the weights are int8")
        for to in ("hf", "gguf")
    ),
    ("quantize --checkpoint runs/tiny --output int8", "exists already"),
    (f"quantize {IN8} --weights int4 --output x", "weights are int8 already"),
    *(
        (f"sample {IN8} --weights {kind}", "the model's weights are int8 already")
        for kind in ("float32", "int4")
    ),
    ("import_model --from hf --input nothing --output out", "nothing has no config.json"),
    (
        "import_model --from hf --input hf/config.json --output out",
        "config.json is a file; give the folder",
    ),
    ("import_model --from nanogpt --input nothing.pt --output out", "there is no"),
    ("import_model --from nanogpt --input hf --output out", "hf cannot be imported"),
    (
        "import_model --from hf --input hf --output out --meta x",
        "--meta has no effect with --from hf",
    ),
    ("import_model --from hf --input hf --output hf", "exists already"),
    *(
        (f"import_model --from hf --input {name} --output out", "cannot be imported: ")
        for name in ("ends", "steers")
    ),
]


@pytest.fixture(scope="module")
def place(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the trained run, with an export, a quantized checkpoint, damaged files, and files
    in the way.
    """
    folder = tmp_path_factory.mktemp("mistakes") / "place"
    shutil.copytree(trained, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert export.main(["--to", "hf", "--checkpoint", "runs/tiny", "--output", "hf"]) == 0
        assert quantize.main(["--checkpoint", "runs/tiny", "--output", "int8"]) == 0
    for name, tensor in (("ends", "x\ny"), ("steers", "\x1b[31m")):
        shutil.copytree(folder / "hf", folder / name)
        (folder / name / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": tensor}})
        )
    (folder / "mine.py").write_text("open('executed', 'w')")
    (folder / "bad.txt").write_bytes(b"good \xff bad" * 50)
    (folder / "short.txt").write_text("too short\n" * 20)
    (folder / "prompts.txt").write_text("It was\n\nIt w€s\n", encoding="utf-8")
    (folder / "empty.txt").write_text("\n\n")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def refuse_here(place: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Call a command there; it is refused, and every file is as before."""

    def contents() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in place.rglob("*")}

    def refuse_here(line: str) -> str:
        monkeypatch.chdir(place)
        before = contents()
        error = refuse(line)
        assert contents() == before
        return error

    return refuse_here


@pytest.mark.parametrize(("line", "words"), LINES, ids=[line[:60] for line, _ in LINES])
def test_mistake_is_one_line_and_leaves_nothing(line: str, words: str, refuse_here: Refuse) -> None:
    assert words in refuse_here(line)


def test_server_that_cannot_start_is_one_line(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1, port {port}" in refuse(f"serve --port {port}")
    monkeypatch.chdir(tmp_path)
    assert "train first: gpt train" in refuse("serve")
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert "pip install 'glassgpt[serve]'" in refuse("serve")
