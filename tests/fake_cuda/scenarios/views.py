"""Looking into a model on the device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import gpt
from fake_cuda.device import FakeCuda
from fake_cuda.setting import configured
from gpt.cli import explain
from gpt.environment import read_settings
from gpt.inspection.tracing.activation_names import activations
from gpt.model import GPT
from gpt.training.setup import open_session
from tiny import tiny_config

PROMPT = ("--prompt", "It was the ", "--device", "cuda")
COMMANDS = {
    "shapes": ("shapes", "--device", "cuda"),
    "shapes, cached": ("shapes", "--cached", "--device", "cuda"),
    "attention": ("attention", *PROMPT),
    "attention, a head": ("attention", *PROMPT, "--layer", "1", "--head", "2"),
    "attention, a page": ("attention", *PROMPT, "--html", "attention.html"),
    "lens": ("lens", *PROMPT),
    "surprisal": ("surprisal", *PROMPT),
    "surprisal, edited": ("surprisal", *PROMPT, "--edit", "blocks.0.attn.hook_z:2=0"),
    "walk": ("walk", *PROMPT),
    "params": ("params",),
    "flops": ("flops", "--device", "cuda"),
    "memory": ("memory", "--device", "cuda", "--dtype", "bfloat16"),
}


def commands(device: FakeCuda) -> dict[str, Any]:
    """`scripts/explain.py` on a run that was trained on the device: every view that has one."""
    open_session(configured("train.max_steps=2"), read_settings(), print).run()
    codes: dict[str, Any] = {}
    for name, options in COMMANDS.items():
        codes[name] = explain.main(list(options))
    codes["page"] = Path("attention.html").stat().st_size
    return codes


def captured(device: FakeCuda, **changes: object) -> dict[str, Any]:
    """Every activation, edited in every way, with gradients."""
    model = GPT(tiny_config(**changes)).to("cuda:0")
    idx = torch.randint(23, (2, 16), device="cuda:0")
    logits, cache = gpt.run_with_cache(model, idx)
    logits.sum().backward()
    names = [name for name in activations(model.config) if name in cache]
    vector = torch.ones(model.config.n_embd, device="cuda:0")
    edits = {
        "blocks.0.attn.hook_z": gpt.edits.zero(head=1),
        "blocks.1.attn.hook_pattern": gpt.edits.scale(0.5),
        "blocks.*.hook_resid_mid": gpt.edits.replace(vector),
    }
    edited, kept = gpt.run_with_cache(model, idx, "blocks.*.hook_resid_post", edits)
    tensors = [logits, edited, *cache.values(), *kept.values(), *tree_leaves([p.grad for p in model.parameters()])]
    return {"captured": len(names), "devices": sorted({str(tensor.device) for tensor in tensors})}


SCENARIOS: dict[str, Callable[[FakeCuda], dict[str, Any]]] = {
    "commands": commands,
    "activations": captured,
    "activations of a rotary model": lambda device: captured(
        device, position="rope", n_kv_head=2, norm="rmsnorm", qk_norm=True, mlp="swiglu"
    ),
}
"""By name, in the order in which they run."""
