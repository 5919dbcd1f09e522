"""Read exported folders by transformers, and print ids, logits and a greedy text after the text.txt
in each.
"""

import json
import sys
from pathlib import Path

import torch
import transformers


@torch.no_grad()
def read(folder: Path) -> dict[str, object]:
    """Return the answers of one folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer((folder / "text.txt").read_text(encoding="utf-8"), return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    return {
        "ids": inputs.input_ids[0].tolist(),
        "logits": model(**inputs).logits[0].tolist(),
        "text": tokenizer.decode(written[0]),
    }


answers = [read(Path(folder)) for folder in sys.argv[1:]]
print(json.dumps({"version": transformers.__version__, "answers": answers}))
