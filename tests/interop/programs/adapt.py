"""Adapt models by peft, and print how much the logits change by saving and loading, and by merging
the adapter.
"""

import copy
import json
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from gpt.config import ModelConfig
from gpt.model import GPT

torch.manual_seed(0)
differences = {}
for tied in (True, False):
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 16, "vocab_size": 23}
    model = GPT(ModelConfig.model_validate({"tie_weights": tied, **sizes})).eval()
    plain = copy.deepcopy(model)
    idx = torch.randint(23, (2, 16))
    before = model(idx)
    targets = ["c_q", "c_k", "c_v", "c_proj", "c_fc"]
    adapted = get_peft_model(model, LoraConfig(target_modules=targets, init_lora_weights=False))
    logits = adapted(idx)
    adapted.save_pretrained(sys.argv[1])
    loaded = PeftModel.from_pretrained(plain, sys.argv[1])(idx)
    merged = adapted.merge_and_unload()
    assert type(merged) is GPT
    others = {"adapted": before, "loaded": loaded, "merged": merged(idx)}
    differences[f"tied {tied}"] = {
        name: float((other - logits).abs().max()) for name, other in others.items()
    }
print(json.dumps(differences))
