"""Every command: a mistake ends with 2 and one line that names it, prints nothing else and writes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

LONG = "a" * 17
NO_NAME = "x" * 300
STEERING = "'a\nerror: all is well\x1b[2J'"
LINES = [
    ("evaluate --batch-size 0", "--batch-size: 0, expected 1 to 1,000,000"),
    ("evaluate --stride 3", "--stride has no effect with --protocol full"),
    ("evaluate --protocol online --batch-size 2", "--batch-size has no effect with --protocol online"),
    ("evaluate --protocol online --weights int8", "int8 weights cannot be trained, as protocol online does"),
    ("evaluate --per-char", "--per-char needs --text-file"),
    ("evaluate --text-file gone.txt", "cannot read gone.txt"),
    ("evaluate --text-file corpus.txt --split val", "--split has no effect with --text-file"),
    ("evaluate --checkpoint runs", "holds no checkpoint"),
    ("evaluate --checkpoint ''", "expected a value, got an empty string"),
    ("evaluate --split test", "has no test split; the run was made with data.test_fraction 0"),
    (f"evaluate --checkpoint {NO_NAME}", NO_NAME),
    ("plot . --output x.png", "cannot read the metrics"),
    (f"plot runs/tiny --output {NO_NAME}.png", f"{NO_NAME}.png"),
    ("quantize --checkpoint runs/gone --output x", "gone"),
    (f"quantize --checkpoint runs/tiny --output {NO_NAME}", NO_NAME),
    ("prepare_data --config tiny.yaml run.seed=1 train.max_steps=2 ' run.seed =3'", "run.seed is given twice"),
    (f"prepare_data --config tiny.yaml data.path={NO_NAME}", NO_NAME),
    (f"prepare_data --config tiny.yaml data.dir={NO_NAME}", NO_NAME),
    ("serve --checkpoint runs/tiny --checkpoint runs/none", "runs/none: no such run or checkpoint"),
    ("serve --port 70000", "--port: 70000, expected 0 to 65,535"),
    ("serve --drain-seconds inf", "--drain-seconds: inf"),
    ("serve --host no.such.host.", "cannot listen at no.such.host."),
    (
        "serve --allow-host=http://gpu.lan",
        "expected a name such as gpu-box.lan, without scheme and port, got 'http://gpu",
    ),
    ("sample --temperature nan", "--temperature: got nan"),
    ("sample --top-p 0", "--top-p: got 0.0, expected greater than 0"),
    (f"sample --checkpoint runs/tiny --seed {2**32 - 1} --num-samples 2", "--seed is 4294967295, and sample i has"),
    ("sample --stop ''", "--stop"),
    ("sample --beam 0", "--beam: 0, expected 1 to 10,000"),
    ("sample --greedy --temperature 0.5", "--temperature: not allowed with argument --greedy"),
    ("sample --checkpoint nowhere", "nowhere: no such run or checkpoint"),
    ("sample --runs nowhere", "no trained run below nowhere"),
    ("sample --device cuda:99", "cuda:99"),
    ("sample --device cuda:99999999999", "cuda:99999999999, expected auto, cpu, cuda, cuda:N or mps"),
    (f"sample --prompt {LONG} --checkpoint runs/tiny", "17 tokens, more than the window of 16"),
    (f"sample --prompt {LONG} --beam 2 --checkpoint runs/tiny", "17 tokens, more than the window of 16"),
    ("sample --prompt a€b¥", "'€' at 1, '¥' at 3"),
    ("sample --interactive --json", "--json has no effect with --interactive"),
    ("sample --beam 2 --temperature 0.5", "--temperature has no effect with --beam"),
    ("sample --length-penalty 2", "--length-penalty has no effect with sampling, without --beam"),
    ("sample --logprobs 0", "--logprobs has no effect with text output, without --json"),
    ("train --print-config", "nothing to train on: give a text, such as my.txt, or --config FILE"),
    ("train --config tiny.yaml --max_iters=5", "have no dashes; did you mean train.max_steps?)"),
    (f"train --config tiny.yaml run.name={NO_NAME}", NO_NAME),
    (f"train --config tiny.yaml run.dir={NO_NAME}", NO_NAME),
    (f"train --config tiny.yaml --resume runs/{NO_NAME}/last", NO_NAME),
    *((f"{line} {STEERING}", "all is well") for line in ("train --config", "evaluate --text-file")),
    ("explain", "VIEW"),
    ("explain lens --prompt It x1", "unrecognized arguments: x1"),
    ("explain params --published gpt2 --nope model.n_layer=3", "unrecognized arguments: --nope"),
    ("explain params --published gpt-2", "no published configuration 'gpt-2'; there are gpt2"),
    ("explain params --published gpt2 --config a.yaml", "--published and --config are two models"),
    ("explain params --config gone.yaml", "gone.yaml: no such configuration file"),
    ("explain params --config tiny.yaml model.n_embd=2000000000 model.n_head=1", "out of memory; lower"),
    ("explain params --config tiny.yaml model.n_layr=3", "command line: model.n_layr: unknown key; did you mean n_lay"),
    ("explain shapes --config tiny.yaml --seq 17", "--seq is 17, expected 1 to 16 (block_size)"),
    ("explain memory --published gpt2 optim.name=sgd", "optim.name: got 'sgd', expected one of adamw, muon"),
    ("explain flops --published gpt2 --prompt-tokens 1024", "is 1,024, expected 1 to 1,023 (what block_size leaves)"),
    ("explain flops --published gpt2 --new-tokens -99999", "--new-tokens is -99,999, expected 1 to 1,023"),
    ("explain flops --published gpt2 model.block_size=1 --new-tokens 1", "block_size 1 has no room for new tokens"),
    ("explain attention --prompt It --layer 1", "--layer is 1, expected 0 (layers of the model)"),
    ("explain attention --prompt It --layer 0 --head 2", "--head is 2, expected 0 to 1 (heads of a layer)"),
    ("explain attention --prompt It --head 0", "--head needs --layer"),
    ("explain attention --prompt ''", "the prompt has 0 tokens, expected 1 to 16"),
    ("explain attention --prompt 'It was the best of rooms'", "the prompt has 24 tokens, expected 1 to 16"),
    ("explain attention --prompt 'It wäs'", "characters outside the vocabulary of 29: 'ä' at 4"),
    *(
        (f"explain attention --prompt 'It was' --edit {edit}", words)
        for edit, words in (
            ("blocks.0.attn.hook_zz=0", "unknown activation blocks.0.attn.hook_zz; did you mean blocks.0.attn.hook_z?"),
            ("blocks.0.attn.hook_z:2=0", "blocks.0.attn.hook_z has heads 0 to 1, not 2"),
            ("blocks.0.attn.hook_z:one=0", "expected NAME=FACTOR or NAME:HEAD=FACTOR"),
            ("blocks.0.attn.hook_q=1e38 --edit blocks.0.attn.hook_attn_scores=1e38", "values that are not finite"),
        )
    ),
    ("explain lens --prompt It --position 2", "--position is 2, expected 0 to 1 (positions of the prompt)"),
    ("explain lens --prompt It --edit logits=0", "a lens reads the streams, and logits comes later"),
]


@pytest.mark.parametrize(("line", "words"), LINES, ids=[line[:60] for line, _ in LINES])
def test_a_mistake_is_one_line_and_leaves_nothing(
    line: str, words: str, here: Path, refuse: Callable[..., str]
) -> None:
    before = sorted(here.rglob("*"))
    assert words in refuse(line)
    assert sorted(here.rglob("*")) == before
