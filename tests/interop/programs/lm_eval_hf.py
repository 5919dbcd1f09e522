"""Print the answers of lm-eval's `hf` for an exported folder.

Arguments: the folder, the JSON of `--model_args`, and the kinds of requests.
"""

import json
import sys
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

REQUESTS: dict[str, list[tuple[Any, ...]]] = {
    "loglikelihood": [("bad", " face"), ("", "ab")],
    "loglikelihood_rolling": [("a bad face\n",)],
    "generate_until": [
        ("bad", {"until": ["s"], "max_gen_toks": 8}),
        ("a bad face", {"until": [], "max_gen_toks": 8}),
    ],
}
"""Examples of each kind of request that tasks have."""

folder, arguments, *kinds = sys.argv[1:]
model = HFLM(pretrained=folder, device="cpu", batch_size=2, **json.loads(arguments))
answers: dict[str, Any] = {}
for kind in kinds:
    requests = [Instance(kind, {}, example, 0) for example in REQUESTS[kind]]
    answers[kind] = getattr(model, kind)(requests, disable_tqdm=True)
print(json.dumps(answers))
