"""Every command: a mistake ends with 2 and one line that names it, prints nothing else and writes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

HUGE = "1" + "0" * 22
LONG = "a" * 17
NO_NAME = "x" * 300
STEERING = "'a\nerror: all is well\x1b[2J'"
MODELS = "--published and --{} are two models"
MISTAKES = [
    ("evaluate --batch-size 0", "--batch-size: 0, expected 1 to 1,000,000"),
    (f"evaluate --protocol random --seed {2**32}", "--seed: 4294967296, expected 0 to 4,294,967,295"),
    ("evaluate --stride 3", "--stride has no effect with --protocol full"),
    ("evaluate --protocol sliding --batches 3", "--batches has no effect"),
    ("evaluate --protocol full --seed 0", "--seed has no effect with --protocol full; it is for random"),
    ("evaluate --rate 0.1", "--rate has no effect with --protocol full; it is for online"),
    ("evaluate --protocol online --rate -1", "--rate: -1, expected 0 to 1,000"),
    ("evaluate --protocol online --batch-size 2", "--batch-size has no effect with --protocol online"),
    ("evaluate --protocol online --weights int8", "int8 weights cannot be trained, as protocol online does"),
    ("evaluate --per-char", "--per-char needs --text-file"),
    ("evaluate --protocol random --text-file corpus.txt", "--protocol random samples a corpus"),
    ("evaluate --text-file gone.txt", "cannot read gone.txt"),
    ("evaluate --text-file corpus.txt --split val", "--split has no effect with --text-file"),
    ("evaluate --checkpoint runs", "holds no checkpoint"),
    ("evaluate --checkpoint ''", "expected a value, got an empty string"),
    ("evaluate --split test", "has no test split; the run was made with data.test_fraction 0"),
    ("plot '' --output x.png", "expected a value, got an empty string"),
    ("plot . --output x.png", "cannot read the metrics"),
    ("plot --output x.png", "required: RUN"),
    ("make_config", "required: TEXT"),
    ("quantize --output ''", "expected a value, got an empty string"),
    ("quantize --checkpoint runs/gone --output x", "gone"),
    ("prepare_data --config tiny.yaml run.seed=1 train.max_steps=2 ' run.seed =3'", "run.seed is given twice"),
    ("serve --checkpoint runs/tiny --checkpoint runs/none", "runs/none: no such run or checkpoint"),
    ("serve --port 70000", "--port: 70000, expected 0 to 65,535"),
    ("serve --max-sequences 0", "--max-sequences: 0, expected 1 to 4,096"),
    ("serve --cache-blocks 0", "--cache-blocks: 0, expected 1 to"),
    ("serve --drain-seconds -1", "--drain-seconds: -1, expected at least 0"),
    ("serve --drain-seconds inf", "--drain-seconds: inf"),
    ("serve --host no.such.host.", "cannot listen at no.such.host."),
    *(
        (f"serve --allow-host={name}", f"expected a name such as gpu-box.lan, without scheme and port, got {name!r}")
        for name in ("", "http://gpu.lan", "gpu.lan:8000", "*")
    ),
    ("sample --temperature -1", "--temperature: got -1.0"),
    ("sample --temperature nan", "--temperature: got nan"),
    ("sample --top-p 0", "--top-p: got 0.0, expected greater than 0"),
    ("sample --top-p 1.5", "--top-p: got 1.5, expected less than or equal to 1"),
    ("sample --top-k -3", "--top-k: got -3"),
    ("sample --min-p 2", "--min-p: got 2.0"),
    ("sample --repetition-penalty nan", "--repetition-penalty: got nan"),
    ("sample --slide-chunk 0", "--slide-chunk: got 0, expected greater than or equal to 1"),
    ("sample --logprobs -1", "--logprobs: got -1"),
    (f"sample --max-new-tokens {HUGE}", f"--max-new-tokens: got {HUGE}"),
    (f"sample --seed {2**32}", "--seed: got 4294967296"),
    (f"sample --checkpoint runs/tiny --seed {2**32 - 1} --num-samples 2", "--seed is 4294967295, and sample i has"),
    ("sample --stop ''", "--stop"),
    ("sample --num-samples 0", "--num-samples: 0, expected at least 1"),
    ("sample --beam 0", "--beam: 0, expected 1 to 10,000"),
    ("sample --beam two", "--beam: invalid int value: 'two'"),
    ("sample --length-penalty inf", "--length-penalty: inf, expected at least 0"),
    (f"sample --prefill-chunk {HUGE}", f"--prefill-chunk: {HUGE}, expected at least 1, less than 2^63"),
    ("sample --greedy --temperature 0.5", "--greedy is temperature 0"),
    ("sample --checkpoint nowhere", "nowhere: no such run or checkpoint"),
    ("sample --runs nowhere", "no trained run below nowhere"),
    ("sample --device cuda:99", "cuda:99"),
    ("sample --device cuda:99999999999", "cuda:99999999999, expected auto, cpu, cuda, cuda:N or mps"),
    ("sample --prompt-file gone.txt", "cannot read gone.txt"),
    ("sample --prompts-file .", "cannot read ."),
    ("sample --output nowhere/out.txt --checkpoint runs/tiny", "cannot write nowhere/out.txt"),
    ("sample --refuse-empty --checkpoint runs/tiny", "the prompt is empty"),
    (f"sample --prompt {LONG} --checkpoint runs/tiny", "17 tokens, more than the window of 16"),
    (f"sample --prompt {LONG} --beam 2 --checkpoint runs/tiny", "17 tokens, more than the window of 16"),
    ("sample --prompt a€b¥", "'€' at 1, '¥' at 3"),
    ("sample --prompt a --prompts-file b", "--prompts-file"),
    ("sample --prompt a --interactive", "--interactive"),
    ("sample --num-sample 2", "--num-sample"),
    ("sample --interactive --json", "--json has no effect with --interactive"),
    ("sample --interactive --num-samples 2", "--num-samples has no effect with --interactive"),
    ("sample --interactive --beam 2", "--beam has no effect with --interactive"),
    ("sample --beam 2 --stats", "--stats has no effect with --beam"),
    ("sample --beam 2 --num-samples 2", "--num-samples has no effect with --beam"),
    ("sample --beam 2 --temperature 0.5", "--temperature has no effect with --beam"),
    ("sample --beam 2 --speculate", "--speculate has no effect with --beam"),
    ("sample --length-penalty 2", "--length-penalty has no effect with sampling, without --beam"),
    ("sample --logprobs 0", "--logprobs has no effect with text output, without --json"),
    ("sample --no-cache --kv-dtype int8", "--kv-dtype has no effect with --no-cache"),
    ("sample --no-cache --prefill-chunk 3", "--prefill-chunk has no effect with --no-cache"),
    ("sample --prompt-file 'x\ud819'", r"expected text that can be encoded, got 'x\ud819'"),
    ("train --print-config", "nothing to train on: give a text, such as my.txt, or --config FILE"),
    ("train --config ''", "expected a value, got an empty string"),
    ("train --config tiny.yaml --resume ''", "expected a value, got an empty string"),
    ("train --config tiny.yaml --max_iters=5", "have no dashes; did you mean train.max_steps?)"),
    ("train --config tiny.yaml run.seed=1 run.seed=3", "command line: run.seed is given twice; leave one of them out"),
]
EXPLAIN = [
    ("", "VIEW"),
    ("atention", "invalid choice: 'atention'"),
    ("--prompt It", "VIEW"),
    ("lens --prompt It x1", "x1"),
    ("lens --prompt It --jsn", "--jsn"),
    ("lens --prompt It --json --markdown", "--markdown"),
    ("params --published gpt2 --nope model.n_layer=3", "unrecognized arguments: --nope"),
    ("params --published gpt-2", "no published configuration 'gpt-2'; did you mean gpt2"),
    ("params --published gpt2 --config a.yaml", MODELS.format("config")),
    ("shapes --config tiny.yaml --checkpoint runs/tiny", "--config and --checkpoint are two models"),
    ("memory --published gpt2 --checkpoint runs", MODELS.format("checkpoint")),
    ("params --config gone.yaml", "gone.yaml: no such configuration file"),
    ("params --published gpt2 --device quantum", "--device: quantum, expected auto"),
    ("shapes --config tiny.yaml --prompt It", "--prompt needs the tokenizer of a trained model"),
    ("shapes --published gpt2 --prompt It", "give --checkpoint, or --seq with --published"),
    ("shapes --prompt It --seq 2", "--prompt determines the tokens; leave out --batch and --seq"),
    ("shapes --config tiny.yaml --seq 17", "--seq is 17, expected 1 to 16 (block_size)"),
    ("shapes --seq 0", "--seq is 0, expected 1 to 16"),
    ("shapes --batch 0", "--batch: 0, expected 1 to 1,000,000"),
    ("shapes --cached --seq 1", "need (B, T) ids, T at least 2"),
    ("memory --published gpt2 --batch 1000001", "--batch: 1000001, expected 1 to 1,000,000"),
    ("memory --published gpt2 --seq 1025", "--seq is 1,025, expected 1 to 1,024 (block_size)"),
    ("memory --published gpt2 optim.name=sgd", "command line: optim.name: got 'sgd', expected one of adamw, muon"),
    ("flops --published gpt2 --seq -1", "--seq is -1, expected 1 to 1,024"),
    ("flops --published gpt2 --prompt-tokens 0", "--prompt-tokens is 0"),
    ("flops --published gpt2 --prompt-tokens 1024", "is 1,024, expected 1 to 1,023 (what block_size leaves)"),
    ("flops --published gpt2 --prompt-tokens 1000 --new-tokens 25", "--new-tokens is 25, expected 1 to 24 (what"),
    ("flops --published gpt2 --new-tokens -99999", "--new-tokens is -99,999, expected 1 to 1,023"),
    ("flops --published gpt2 model.block_size=1 --new-tokens 1", "block_size 1 has no room for new tokens"),
    ("attention --prompt It --layer 1", "--layer is 1, expected 0 (layers of the model)"),
    ("attention --prompt It --layer 0 --head 2", "--head is 2, expected 0 to 1 (heads of a layer)"),
    ("attention --prompt It --layer 0 --head -1", "--head is -1"),
    ("attention --prompt It --head 0", "--head needs --layer"),
    ("attention --prompt It --numbers --layer 0", "--numbers prints one matrix; give --layer and --head"),
    ("attention --prompt It --layer 0 --head 0 --markdown", "--markdown has no effect with --head"),
    ("attention --prompt It --layer 0 --head 0 --numbers --json", "--numbers has no effect with --json"),
    ("attention --prompt It --layer 0 --head 0 --numbers --png x.png", "--numbers has no effect with --png"),
    ("attention --prompt It --memory-limit nan", "--memory-limit: nan, expected above 0, at most 1,000,000"),
    ("attention --prompt 'It was' --memory-limit 1e-7", "more than the limit of 107"),
    ("lens --prompt 'It was' --memory-limit 1e-7", "more than the limit of 107"),
    ("lens --prompt It --position 2", "--position is 2, expected 0 to 1 (positions of the prompt)"),
    ("lens --prompt It --position -1", "--position is -1"),
    ("lens --prompt It --top 0", "--top: 0, expected at least 1"),
    ("lens --prompt It --position 0 --json", "--position has no effect with --json, which has the whole view"),
    ("lens --prompt It --position 0 --html x.html", "--position has no effect with --html"),
    ("lens --prompt It --edit logits=0", "a lens reads the streams, and logits comes later"),
    ("surprisal --prompt I", "this view needs at least 2 tokens"),
    ("surprisal --prompt It --temperature nan", "--temperature: got nan"),
    ("surprisal --prompt It --top-k -1", "--top-k: got -1"),
    # what needs no model is said before one is loaded
    ("attention --runs gone --prompt It --edit x", "--edit x"),
    ("lens --runs gone --prompt It --json --png x.png", "--json prints"),
]
EDITS = [
    ("blocks.0.attn.hook_zz=0", "unknown activation blocks.0.attn.hook_zz; did you mean blocks.0.attn.hook_z?"),
    ("blocks.0.attn.hook_z:2=0", "blocks.0.attn.hook_z has heads 0 to 1, not 2"),
    ("hook_embed:0=0", "hook_embed has no heads"),
    ("blocks.0.ln1.hook_scale=0", "can be read, but not edited"),
    ("=0", "unknown activation"),
    *(
        (f"blocks.0.attn.hook_z{rest}", "expected NAME=FACTOR or NAME:HEAD=FACTOR")
        for rest in ("", "=", "=off", "=nan")
    ),
    *((edit, "expected NAME=FACTOR") for edit in ("blocks.0.attn.hook_z:=0", "blocks.0.attn.hook_z:one=0", "''")),
]
TEXTS = [
    ("", "--prompt"),
    ("--prompt ''", "the prompt has 0 tokens"),
    ("--prompt 'It was the best of rooms'", "the prompt has 24 tokens, more than the window of 16"),
    ("--prompt 'It wäs'", "characters outside the vocabulary of 29: 'ä' at 4"),
    ("--prompt It --checkpoint runs/gone", "runs/gone"),
    ("--prompt It --runs gone", "no trained run below gone"),
    ("--prompt It model.n_layer=3", "unrecognized arguments: model.n_layer=3"),
    ("--prompt It --edit blocks.0.attn.hook_zz=0", "unknown activation"),
    ("--prompt It --png view --json", "--json prints a view that --png writes to a file; give one"),
    *(
        (
            f"--prompt 'It was' --edit blocks.0.attn.hook_q=1e38 --edit blocks.0.attn.hook_attn_scores=1e38 {output}",
            "values that are not finite",
        )
        for output in ("", "--json", "--png x.png")
    ),
]
PAGES = [
    ("--html view --markdown", "--markdown prints a view that --html writes to a file; give one"),
    (
        "--edit blocks.0.attn.hook_q=1e38 --edit blocks.0.attn.hook_attn_scores=1e38 --html x.html",
        "values that are not finite",
    ),
]
OVERRIDES = [
    ("model.n_layr=3", "command line: model.n_layr: unknown key; did you mean n_layer?"),
    ("nonsense", "command line: 'nonsense' is not of the form section.key=value"),
    ("model.n_layer=3 model.n_layer=4", "command line: model.n_layer is given twice"),
    ("model.n_layer=1000000000", "model.n_layer: got 1000000000, expected less than or equal to 10000"),
]
LINES = [
    *MISTAKES,
    *(
        (line + NO_NAME, NO_NAME)
        for line in (
            *("evaluate --checkpoint ", "evaluate --runs ", "evaluate --checkpoint runs/tiny --text-file "),
            *("plot --output x.png ", "quantize --checkpoint runs/tiny --output ", "prepare_data --config "),
            *("prepare_data --config tiny.yaml data.path=", "prepare_data --config tiny.yaml data.dir="),
            *("sample --prompt-file ", "sample --checkpoint runs/tiny --output "),
            "train --config tiny.yaml run.name=",
            *("train --config tiny.yaml run.dir=", "train --config tiny.yaml --resume "),
        )
    ),
    (f"plot runs/tiny --output {NO_NAME}.png", f"{NO_NAME}.png"),
    (f"train --config tiny.yaml --resume runs/{NO_NAME}/last", NO_NAME),
    *(
        (f"{line} {STEERING}", "all is well")
        for line in ("train --config", "sample --checkpoint", "evaluate --text-file", "quantize --output x")
    ),
    ("sample --prompt It --beam 1000000000 --checkpoint runs/tiny", "--beam: 1000000000, expected 1 to 10,000"),
    ("evaluate --protocol random --batch-size 1000000000", "--batch-size: 1000000000, expected 1 to 1,000,000"),
    *(
        (f"explain {view} --config tiny.yaml model.n_embd=2000000000 model.n_head=1", "out of memory; lower")
        for view in ("shapes", "params", "memory")
    ),
    *((f"explain {options}", words) for options, words in EXPLAIN),
    *((f"explain attention --prompt 'It was' --edit {edit}", words) for edit, words in EDITS),
    *((f"explain {view} {text}", words) for view in ("attention", "lens", "surprisal") for text, words in TEXTS),
    *((f"explain {view} --prompt 'It was' {text}", words) for view in ("attention", "lens") for text, words in PAGES),
    *((f"explain shapes {text}", words) for text, words in TEXTS[1:6]),
    *(
        (f"explain {view} --config tiny.yaml {overrides}", words)
        for view in ("shapes", "params", "flops", "memory")
        for overrides, words in OVERRIDES
    ),
]


@pytest.mark.parametrize(("line", "words"), LINES, ids=[line[:60] for line, _ in LINES])
def test_a_mistake_is_one_line_and_leaves_nothing(
    line: str, words: str, here: Path, refuse: Callable[..., str]
) -> None:
    before = sorted(here.rglob("*"))
    assert words in refuse(line)
    assert sorted(here.rglob("*")) == before
