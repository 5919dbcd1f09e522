"""Print what lm-eval's `hf` makes of an exported folder; further arguments, as JSON, are those of `--model_args`."""

import json
import sys
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

WAYS = {
    "loglikelihood": [("bad", " face"), ("", "ab")],
    "loglikelihood_rolling": [("a bad face\n",)],
    "generate_until": [("bad", {"until": ["s"], "max_gen_toks": 8}), ("a bad face", {"until": [], "max_gen_toks": 8})],
}
"""Kinds of requests of tasks, and examples."""

folder, arguments, *wanted = sys.argv[1:]
model = HFLM(pretrained=folder, device="cpu", batch_size=2, **json.loads(arguments))
answers: dict[str, Any] = {}
for way in wanted:
    requests = [Instance(way, {}, example, 0) for example in WAYS[way]]
    answers[way] = getattr(model, way)(requests, disable_tqdm=True)
print(json.dumps(answers))
