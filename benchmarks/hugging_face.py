"""GPT-2 under transformers.Trainer; as a program, one whole training run."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from gpt.config import Config, ModelConfig, load_config
from gpt.data import BatchSampler, prepare
from gpt.settings import read_settings
from gpt.training.session import resolve


class Windows(IterableDataset[dict[str, Tensor]]):
    """The rows of our batches, one by one; GPT-2 itself moves the labels by one position."""

    def __init__(self, sampler: BatchSampler, batch_size: int) -> None:
        super().__init__()
        self.sampler, self.batch_size = sampler, batch_size

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            for row in self.sampler.get_batch(self.batch_size)[0]:
                yield {"input_ids": row, "labels": row}


def import_library() -> Any:
    """The package transformers, which is no dependency of this one; its parts are loaded late unless asked for."""
    library = import_module("transformers")
    assert library.GPT2LMHeadModel is not None
    assert library.Trainer is not None
    library.utils.logging.disable_progress_bar()
    return library


def build_gpt2(config: ModelConfig, activation: str = "gelu_pytorch_tanh") -> Any:
    """GPT2LMHeadModel of the same shape. Its GELU is GPT-2's, in torch's kernel: "gelu_new" is slower."""
    library = import_library()
    return library.GPT2LMHeadModel(
        library.GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.block_size,
            n_embd=config.n_embd,
            n_layer=config.n_layer,
            n_head=config.n_head,
            activation_function=activation,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.weights_dropout,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
    )


def build_trainer(
    config: Config,
    sampler: BatchSampler,
    dtype: str,
    max_steps: int,
    folder: Path,
    step_done: Callable[[], bool] = lambda: True,
) -> Any:
    """A Trainer with fused AdamW and a cosine schedule, that logs, evaluates and saves nothing.

    Args:
        config: resolved: `model.vocab_size` is set.
        sampler: of the training split.
        dtype: bfloat16 for its autocast, else float32.
        max_steps: of the schedule.
        folder: that it wants.
        step_done: called after every step; the training ends where it says False.
    """
    library = import_library()

    class Steps(library.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control.should_training_stop |= not step_done()
            return control

    optim, train = config.optim, config.train
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        max_steps=max_steps,
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
    model = build_gpt2(config.model)
    windows = Windows(sampler, train.batch_size)
    return library.Trainer(model=model, args=arguments, train_dataset=windows, callbacks=[Steps()])


def load_gpt2(folder: Path) -> nn.Module:
    """What `main` saved."""
    return LogitsOnly(import_library().GPT2LMHeadModel.from_pretrained(folder).eval())


class LogitsOnly(nn.Module):
    """Its output is a record."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, idx: Tensor) -> Tensor:
        """(B, T) -> (B, T, V)."""
        logits: Tensor = self.model(idx).logits
        return logits


def main() -> None:
    """Train as a configuration file says, in float32, and save the model: FILE FOLDER."""
    loaded, folder = load_config(Path(sys.argv[1])), Path(sys.argv[2])
    dataset = prepare(loaded.config.data, read_settings(), print)
    config = resolve(loaded, dataset)
    torch.manual_seed(config.run.seed)
    sampler = BatchSampler(dataset.train, config.model.block_size, config.run.seed)
    trainer = build_trainer(config, sampler, "float32", config.train.max_steps, folder)
    trainer.train()
    trainer.save_model(str(folder))


if __name__ == "__main__":
    main()
