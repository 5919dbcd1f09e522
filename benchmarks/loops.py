"""The training loops whose steps are timed: this package's, nanoGPT's, and that of transformers.Trainer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from benchmarks.nanogpt import import_nanogpt, nanogpt_shape
from benchmarks.turns import Turns, resident_bytes
from gpt.config import Config, LoadedConfig
from gpt.data import BatchSampler, prepare
from gpt.device import choose_compute
from gpt.kernels.training.block import NativeBlock
from gpt.report import Report
from gpt.settings import read_settings
from gpt.training.schedule import learning_rate
from gpt.training.session import open_session, resolve

Begin = Callable[[torch.device], Turns]
"""Called once the memory before the model is known."""


def run_gpt(loaded: LoadedConfig, begin: Begin, report: Report) -> None:
    """The loop of `gpt.training.Trainer`, without logging and evaluations."""
    wake_torch()
    before = resident_bytes()
    trainer = open_session(loaded, read_settings(), report)
    try:
        config, model = trainer.config, trainer.model
        native, compiled = isinstance(model.h[0], NativeBlock), model.h[0]._compiled_call_impl is not None
        turns = begin(trainer.compute.device)
        turns.about |= {
            "before_bytes": before,
            "dtype": str(trainer.compute.dtype).removeprefix("torch."),
            "blocks": "native" if native else "compiled" if compiled else "eager",
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }
        size, count, step = config.train.batch_size, config.train.grad_accum_steps, 0
        while True:
            inputs, targets = trainer.sampler.get_batch(size * count)
            batches = list(zip(torch.split(inputs, size), torch.split(targets, size), strict=True))
            rate = learning_rate(min(step, config.train.max_steps - 1), config.optim, config.train.max_steps)
            trainer.stepper.step(step, rate, batches)
            step += 1
            if trainer.average is not None:
                trainer.average.update(step)
            if not turns.step_done():
                return
    finally:
        trainer.monitor.close()


def run_nanogpt(loaded: LoadedConfig, checkout: Path, dtype: str, begin: Begin, report: Report) -> None:
    """What nanoGPT's train.py does in an iteration, with its model and optimizer, on our batches.

    Its train.py never uses autocast on a CPU: there, bfloat16 is what it would be with it.
    """
    config, sampler, device = _prepare(loaded, report)
    optim, train = config.optim, config.train
    module = import_nanogpt(checkout)
    wake_torch()
    before = resident_bytes()
    model = module.GPT(module.GPTConfig(**nanogpt_shape(config.model))).to(device)
    optimizer = model.configure_optimizers(optim.weight_decay, optim.learning_rate, optim.betas, device.type)
    autocast: AbstractContextManager[object] = (
        torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
    )
    turns = begin(device)
    turns.about |= {
        "before_bytes": before,
        "dtype": dtype,
        "blocks": "eager",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    step = 0
    while True:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(min(step, train.max_steps - 1), optim, train.max_steps)
        for _ in range(train.grad_accum_steps):
            inputs, targets = sampler.get_batch(train.batch_size)
            with autocast:
                _, loss = model(inputs.to(device), targets.contiguous().to(device))
                loss = loss / train.grad_accum_steps
            loss.backward()
        if optim.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if not turns.step_done():
            return


def run_hugging_face(loaded: LoadedConfig, dtype: str, folder: Path, begin: Begin, report: Report) -> None:
    """Trainer's own loop from beginning to end; a callback counts its steps."""
    from benchmarks.hugging_face import build_trainer, import_library

    import_library()
    config, sampler, device = _prepare(loaded, report)
    wake_torch()
    before = resident_bytes()
    turns = begin(device)
    endless = 1_000_000
    trainer = build_trainer(config, sampler, dtype, endless, folder, turns.step_done)
    turns.about |= {
        "before_bytes": before,
        "dtype": dtype,
        "blocks": "eager",
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
    }
    trainer.train()


def wake_torch() -> None:
    """Make it load what it only loads at a first step, so that this does not count as memory of a model."""
    with torch.random.fork_rng(devices=[]):
        layer = torch.nn.Linear(32, 32)
        optimizer = torch.optim.AdamW(layer.parameters())
        for dtype in (torch.float32, torch.bfloat16):
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                loss = layer(torch.ones(32, 32)).sum()
            loss.backward()
            optimizer.step()


def _prepare(loaded: LoadedConfig, report: Report) -> tuple[Config, BatchSampler, torch.device]:
    """Configuration, batches and device as `open_session` has them."""
    device = choose_compute(loaded.config.run, report).device
    dataset = prepare(loaded.config.data, read_settings(), report)
    dataset.check_length(loaded.config.model.block_size)
    config = resolve(loaded, dataset)
    torch.manual_seed(config.run.seed)
    return config, BatchSampler(dataset.train, config.model.block_size, config.run.seed), device
