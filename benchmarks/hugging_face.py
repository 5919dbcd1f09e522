"""GPT-2 under transformers.Trainer; as a program, one whole training run."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from benchmarks.measure import Row
from benchmarks.turns import Turns
from gpt.config import LoadedConfig, ModelConfig, load_config
from gpt.data import BatchSampler, prepare
from gpt.environment import read_settings
from gpt.progress import silent
from gpt.training.setup import resolve


class Windows(IterableDataset[dict[str, Tensor]]):
    """The sequences of our batches, one by one; GPT-2 itself shifts the labels by one position."""

    def __init__(self, sampler: BatchSampler, batch_size: int) -> None:
        super().__init__()
        self.sampler, self.batch_size = sampler, batch_size

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            for sequence in self.sampler.get_batch(self.batch_size)[0]:
                yield {"input_ids": sequence, "labels": sequence}


def import_library() -> Any:
    """Import transformers, with the parts that it would otherwise load late."""
    library = import_module("transformers")
    assert library.GPT2LMHeadModel is not None
    assert library.Trainer is not None
    library.utils.logging.disable_progress_bar()
    return library


def build_gpt2(config: ModelConfig, activation: str = "gelu_pytorch_tanh") -> Any:
    """Build GPT2LMHeadModel in the same shape; the default is GPT-2's GELU by torch's kernel: "gelu_new" is slower."""
    library = import_library()
    return library.GPT2LMHeadModel(
        library.GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.block_size,
            **{key: getattr(config, key) for key in ("n_embd", "n_layer", "n_head")},
            activation_function=activation,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.weights_dropout,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
    )


def build_trainer(loaded: LoadedConfig, dtype: str, folder: str, step_done: Callable[[], None]) -> Any:
    """Build a Trainer with fused AdamW and a cosine schedule that logs, evaluates and saves nothing.

    `dtype` is bfloat16 for its autocast, else float32; `step_done` is called after every step.
    """
    dataset = prepare(loaded.config.data, read_settings(), silent)
    config, library = resolve(loaded, dataset), import_library()
    optim, train = config.optim, config.train

    class Steps(library.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_step_end(self, *arguments: Any, **kwargs: Any) -> None:
            step_done()

    options = library.TrainingArguments(
        output_dir=folder,
        max_steps=train.max_steps,
        per_device_train_batch_size=train.batch_size,
        gradient_accumulation_steps=train.grad_accum_steps,
        optim="adamw_torch_fused",
        learning_rate=optim.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr": optim.min_lr},
        warmup_steps=optim.warmup_steps,
        adam_beta1=optim.betas[0],
        adam_beta2=optim.betas[1],
        weight_decay=optim.weight_decay,
        max_grad_norm=optim.grad_clip,
        bf16=dtype == "bfloat16",
        use_cpu=config.run.device == "cpu" or not torch.cuda.is_available(),
        seed=config.run.seed,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    torch.manual_seed(config.run.seed)
    torch.set_num_threads(config.run.threads or torch.get_num_threads())
    windows = Windows(BatchSampler(dataset.train, config.model.block_size, config.run.seed), train.batch_size)
    return library.Trainer(build_gpt2(config.model), options, train_dataset=windows, callbacks=[Steps()])


def train_gpt2(loaded: LoadedConfig, turns: Turns, job: Row) -> None:
    """Run Trainer's own loop, which tells of every step, for as many as are configured."""
    trainer = build_trainer(loaded, job["dtype"], loaded.config.run.dir, lambda: turns.progress(0, None))
    turns.begin(trainer.model, job["dtype"], "eager")
    trainer.train()


def load_gpt2(folder: Path) -> nn.Module:
    """Load what `main` saved, as a module that returns logits only."""
    model = import_library().GPT2LMHeadModel.from_pretrained(folder).eval()
    model.register_forward_hook(lambda module, inputs, output: output.logits)
    return model


def main() -> None:
    """Train as a configuration file says, in float32, and save the model. Arguments: FILE FOLDER."""
    trainer = build_trainer(load_config(Path(sys.argv[1])), "float32", sys.argv[2], lambda: None)
    trainer.train()
    trainer.save_model(sys.argv[2])


if __name__ == "__main__":
    main()
