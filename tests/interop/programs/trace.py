"""Trace a model by nnsight, and print how far its activations are from ours, and how far an edit
moves the logits.
"""

import json

import torch
from nnsight import NNsight

import gpt
from gpt.config import ModelConfig
from gpt.model import GPT

torch.manual_seed(0)
model = GPT(ModelConfig(n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=23)).eval()
idx = torch.randint(23, (2, 16))
expected, cache = gpt.run_with_cache(model, idx)
traced = NNsight(model)
with traced.trace(idx):
    block = traced.h[0].output.save()
    logits = traced.output.save()
with traced.trace(idx):
    traced.h[1].mlp.output[:] = 0
    edited = traced.output.save()
pairs = {
    "block": (block, cache["blocks.0.hook_resid_post"]),
    "logits": (logits, expected),
    "edited": (edited, expected),
}
differences = {name: float((one - other).abs().max()) for name, (one, other) in pairs.items()}
print(json.dumps(differences))
