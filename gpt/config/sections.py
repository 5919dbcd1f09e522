"""The six sections of a configuration file, typed, bounded and immutable.

The types of their values are in the other modules here, such as `ranges` and `components`. A check
that compares keys of a section is in that section's `cross_checks`, so that the loader can report
all contradictions at once.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from gpt.config.components import (
    LossTerms,
    MLPName,
    NormName,
    OptimizerName,
    PositionName,
    ScheduleName,
)
from gpt.config.filter_fields import filter_fields
from gpt.config.lists import Betas, Fractions, Strings, Weights
from gpt.config.names import RunName
from gpt.config.paths import CorpusPaths, OnePath, PathText
from gpt.config.ranges import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    Sequences,
)
from gpt.system.environment import DEVICE_PATTERN

MIN_SEQUENCE_LENGTH = 8
"""Length of the shortest sequences into which `train.length_warmup` may cut a window."""
Problem = tuple[str, str]
"""A key of the section, and what is wrong with its value."""


class CrossCheckError(ValueError):
    """Keys of one section contradict each other; `problems` has each contradiction."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{key}: {message}" for key, message in problems))
        self.problems = problems


class Section(BaseModel):
    """A frozen, strict section: unknown keys and values of another type are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", protected_namespaces=())

    def cross_checks(self) -> Iterator[Problem]:
        """Yield a problem for each contradiction between keys; a section may have no such check."""
        yield from ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = list(self.cross_checks())
        if problems:
            raise CrossCheckError(problems)
        return self


class RunConfig(Section):
    """Name, folder and hardware of a run."""

    name: RunName | None = Field(
        None,
        description="Run folder below `dir`; null: the name of the configuration file.",
    )
    dir: PathText = Field("runs", description="Folder that holds the run folders.")
    seed: Seed = Field(
        1337,
        description="Seed of initialization and dropout (torch's generator) and of the data order "
        "(its own).",
    )
    device: str = Field(
        "auto", pattern=DEVICE_PATTERN, description="auto: CUDA, then MPS, then CPU."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type of the matmuls; weights stay float32. auto: bfloat16 where the hardware "
        "supports it.",
    )
    compile: bool = Field(
        False,
        description="torch.compile of each block, which takes half a minute; for long runs on "
        "CUDA.",
    )
    kernels: Literal["auto", "torch", "native"] = Field(
        "auto",
        description="native: C++ kernels on a CPU, in float32, or in bfloat16 where the processor "
        "has instructions for it; auto: native where it applies, and on CUDA one graph "
        "of a step; torch: PyTorch's operators one by one.",
    )
    snapshots: bool = Field(
        True,
        description="Keep 32 small snapshots of the token embedding, of attention to one line and "
        "of what the model writes, by which pages show it learn.",
    )
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None,
        description="CPU threads of a process; null: one per core, shared equally by the processes "
        "of a machine.",
    )


class DataConfig(Section):
    """The corpus, its tokenizer and its split."""

    source: Literal["shakespeare", "pydocs", "file"] = Field(
        "shakespeare", description="A named corpus, or your own file or files."
    )
    path: CorpusPaths = Field(
        None,
        description="For source: file: a file, a folder, or a glob pattern such as "
        "corpus/**/*.txt. Text in UTF-8. Several, as [a.txt, b.txt], are sampled by "
        "their lengths.",
    )
    dir: PathText = Field(
        "data",
        description="Folder of downloads and token files; corpora are looked up in GPT_DATA_DIR "
        "first.",
    )
    tokenizer: Literal["char", "byte", "bpe", "word"] = Field(
        "char",
        description="char: one id per distinct character of the corpus; byte: 256 ids, any text; "
        "bpe: byte pair encoding, any text; word: the most frequent words, the white space between "
        "them, and <unk> for other words. bpe and word need the tokenizers package.",
    )
    bpe_vocab_size: Annotated[int, Field(ge=257, le=1_000_000)] = Field(
        1024,
        description="With tokenizer: bpe: ids, of which 256 are bytes and the rest are learned "
        "from the corpus.",
    )
    word_vocab_size: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        4096,
        description="With tokenizer: word: ids, of which one is <unk>, and the rest are the most "
        "frequent words and white space characters of the corpus.",
    )
    val_fraction: float = Field(
        0.1, gt=0, lt=1, description="Fraction of the text, at its end, held out for validation."
    )
    test_fraction: Fraction = Field(
        0.0,
        description="Fraction of the text, after that for validation, held out for `evaluate "
        "--split test`.",
    )
    items: Literal["none", "lines", "paragraphs", "pairs"] = Field(
        "none",
        description="What the text is made of. none: running text; lines: a list, such as of "
        "names, one item a line; paragraphs: texts between empty lines; pairs: questions and "
        "answers, in JSON lines or a table of two columns. Items are split, shuffled and sampled "
        "whole, whatever data.order is.",
    )
    val_path: OnePath = Field(
        None,
        description="A text of your own for validation, as `path`: a file, a folder, or a glob "
        "pattern. Training then reads all of the corpus; null: see val_fraction.",
    )
    test_path: OnePath = Field(
        None,
        description="A text of your own for `evaluate --split test`, as val_path; null: see "
        "test_fraction.",
    )
    unknown: Literal["error", "replace", "drop"] = Field(
        "error",
        description="With tokenizer: char: characters of val_path and test_path that the corpus "
        "lacks. error: they are refused; replace: they are read as ?, or another character that "
        "the corpus has; drop: they are left out.",
    )
    order: Literal["random", "shuffled"] = Field(
        "random",
        description="Order of training. random: windows at random positions; shuffled: every block "
        "of block_size tokens once an epoch, from another offset and in another order "
        "each epoch.",
    )

    def cross_checks(self) -> Iterator[Problem]:
        if self.val_fraction + self.test_fraction >= 1:
            yield (
                "test_fraction",
                f"with val_fraction {self.val_fraction:g}, it leaves nothing to train on",
            )
        if self.source == "file" and self.path is None:
            yield "path", "is needed with source: file"
        if self.source != "file" and self.path is not None:
            yield "path", f"is only read with source: file, and source is {self.source}"
        has_several_paths = isinstance(self.path, tuple)
        if has_several_paths:
            # Several texts can only be read as windows at random positions.
            if self.items != "none":
                yield "items", "are for one path; put the files into a folder, and name that"
            if self.order == "shuffled":
                yield "order", "shuffled is for one path; take random for several"
        yield from self._check_held_out()
        for tokenizer in ("bpe", "word"):
            key = f"{tokenizer}_vocab_size"
            # Another value than the default was given by the user, and would be ignored.
            is_default = getattr(self, key) == type(self).model_fields[key].default
            if self.tokenizer != tokenizer and not is_default:
                yield (
                    key,
                    f"is only read with tokenizer: {tokenizer}, and tokenizer is {self.tokenizer}",
                )

    def _check_held_out(self) -> Iterator[Problem]:
        """Yield the problems of the keys that choose a text for validation or for the test."""
        default_val_fraction = type(self).model_fields["val_fraction"].default
        if self.val_path is not None and self.val_fraction != default_val_fraction:
            yield "val_fraction", "is not read with val_path, all of which validates; leave it out"
        given_paths = [key for key in ("val_path", "test_path") if getattr(self, key) is not None]
        if self.test_fraction > 0 and given_paths:
            # A token file holds the training, validation and test splits in this order. A test
            # split cut from the corpus would stand before the text of val_path.
            yield "test_fraction", "is not read with val_path or test_path; leave it out"
        has_several_paths = isinstance(self.path, tuple)
        if has_several_paths:
            for key in given_paths:
                yield key, "is for one path; put the files into a folder, and name that"
        if self.unknown != "error" and not given_paths:
            yield "unknown", "is only read with val_path or test_path"
        if self.unknown != "error" and self.tokenizer != "char":
            yield (
                "unknown",
                f"is only read with tokenizer: char, and tokenizer is {self.tokenizer}",
            )


class ModelConfig(Section):
    """The architecture."""

    n_layer: Annotated[int, Field(ge=1, le=10_000)] = Field(6, description="Blocks.")
    n_head: PositiveInt = Field(6, description="Query heads H.")
    n_kv_head: PositiveInt | None = Field(
        None,
        description="Key and value heads K; null: as many as n_head. Fewer: grouped-query "
        "attention.",
    )
    n_embd: PositiveInt = Field(384, description="Width C of the residual stream.")
    block_size: PositiveInt = Field(
        256, description="Context window: most positions T a sequence may have."
    )
    vocab_size: PositiveInt | None = Field(None, description="Ids V; null: from the tokenizer.")
    dropout: Fraction = Field(
        0.0, description="Probability, on embeddings, attention weights and sublayer outputs."
    )
    attention_dropout: Fraction | None = Field(
        None, description="On attention weights; null: as `dropout`."
    )
    bias: bool = Field(False, description="Biases in linear layers and LayerNorm.")
    norm: NormName = "layernorm"
    norm_eps: PositiveFloat = Field(1e-5, description="Added to the variance before the root.")
    position: PositionName = "learned"
    rope_theta: PositiveFloat = Field(
        10000.0, description="Base of the rotary and sinusoidal frequencies."
    )
    mlp: MLPName = "gelu"
    mlp_width: PositiveInt | None = Field(
        None,
        description="Hidden width; null: 4 n_embd, or 8/3 n_embd for swiglu, rounded up to a "
        "multiple of 8.",
    )
    tie_weights: bool = Field(True, description="lm_head shares the storage of wte.")
    qk_norm: bool = Field(
        False, description="RMSNorm on each query and key head before the scores."
    )
    init: Literal["gpt2", "zero_projections"] = Field(
        "gpt2",
        description="zero_projections: c_proj starts at zero, so that every block begins as the "
        "identity.",
    )
    attention: Literal["auto", "reference", "sdpa"] = Field(
        "auto", description="How attention is computed; the result is the same. auto: by device."
    )

    @property
    def kv_heads(self) -> int:
        """Return the number of key and value heads K."""
        return self.n_head if self.n_kv_head is None else self.n_kv_head

    @property
    def head_dim(self) -> int:
        """Return the width D of one head."""
        return self.n_embd // self.n_head

    @property
    def weights_dropout(self) -> float:
        """Return the probability with which an attention weight is dropped."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def has_dropout(self) -> bool:
        """Return whether training uses random numbers in the forward pass."""
        return self.dropout > 0 or self.weights_dropout > 0

    @property
    def mlp_hidden(self) -> int:
        """Return the hidden width of the feed-forward network."""
        if self.mlp_width is not None:
            return self.mlp_width
        if self.mlp == "swiglu":
            # SwiGLU has three matrices instead of two, so that 2/3 of the usual width 4 n_embd
            # gives as many parameters. GPUs multiply matrices fastest in multiples of 8.
            width = self.n_embd * 8 / 3
            return math.ceil(width / 8) * 8
        return 4 * self.n_embd

    def to_dict(self) -> dict[str, Any]:
        """Return the values as a dict for libraries that expect a transformers model, such as peft.

        These libraries look up `model_type` and `tie_word_embeddings`.
        """
        return {
            **self.model_dump(),
            "model_type": "glassgpt",
            "tie_word_embeddings": self.tie_weights,
        }

    def cross_checks(self) -> Iterator[Problem]:
        if self.n_embd % self.n_head:
            yield "n_embd", f"{self.n_embd} is not divisible by n_head {self.n_head}"
        # `elif`, since `head_dim` is only right if n_embd is divisible by n_head.
        elif self.position == "rope" and self.head_dim % 2:  # rope rotates pairs of dimensions
            yield (
                "n_head",
                f"rope needs an even head_dim; n_embd {self.n_embd} / n_head {self.n_head} is "
                f"{self.head_dim}",
            )
        # Each frequency has a sine and a cosine.
        if self.position == "sinusoidal" and self.n_embd % 2:
            yield "n_embd", f"sinusoidal positions need an even width, not {self.n_embd}"
        # Each key and value head serves the same number of query heads.
        if self.n_kv_head is not None and self.n_head % self.n_kv_head:
            yield (
                "n_kv_head",
                f"n_head {self.n_head} is not divisible by n_kv_head {self.n_kv_head}",
            )


class OptimConfig(Section):
    """The optimizer and its learning rate."""

    name: OptimizerName = Field(
        "adamw",
        description="muon: Muon for the matrices of the blocks, AdamW for everything else.",
    )
    learning_rate: PositiveFloat = Field(1e-3, description="Peak learning rate.")
    min_lr: NonNegativeFloat = Field(1e-4, description="Learning rate at the end of the decay.")
    schedule: ScheduleName = Field(
        "cosine",
        description="After the warmup: cosine decay, stable then linear decay (wsd), or constant.",
    )
    warmup_steps: NonNegativeInt = Field(
        100,
        description="Steps of linear warmup; a tenth of max_steps where that is no longer than "
        "this.",
    )
    decay_steps: PositiveInt | None = Field(
        None,
        description="cosine: step that reaches min_lr; null: max_steps. wsd: length of the decay; "
        "null: max_steps / 5.",
    )
    betas: Betas = Field((0.9, 0.99))
    weight_decay: NonNegativeFloat = Field(
        0.1, description="Decoupled decay of matrices and embeddings; vectors are never decayed."
    )
    grad_clip: NonNegativeFloat = Field(
        1.0, description="Largest global gradient norm; 0: no clipping."
    )
    muon_rate: PositiveFloat = Field(
        0.02, description="With name: muon: peak learning rate of the matrices."
    )

    def cross_checks(self) -> Iterator[Problem]:
        # The constant schedule never decays, so that it does not read min_lr.
        decays = self.schedule != "constant"
        if decays and self.min_lr > self.learning_rate:
            yield "min_lr", f"{self.min_lr:g} is above learning_rate {self.learning_rate:g}"
        default_muon_rate = type(self).model_fields["muon_rate"].default
        if self.name != "muon" and self.muon_rate != default_muon_rate:
            yield "muon_rate", f"is only read with name: muon, and name is {self.name}"


class TrainConfig(Section):
    """Batches, steps, evaluations and checkpoints."""

    batch_size: Sequences = Field(
        64, description="Sequences per micro-batch, of all processes together."
    )
    grad_accum_steps: Sequences = Field(
        1,
        description="Micro-batches per optimizer step; one step sees batch_size * grad_accum_steps "
        "sequences.",
    )
    max_steps: PositiveInt = Field(5000, description="Optimizer steps.")
    length_warmup: Fractions = Field(
        (),
        description="Fractions of the steps in which windows are cut into shorter sequences, whose "
        "length doubles from one to the next up to model.block_size: with a block_size "
        "of 512 and [0.4, 0.4], of 128 tokens, then of 256, and whole windows in the "
        "rest of the steps. []: whole windows in all.",
    )
    mtp_weights: Weights = Field(
        (),
        description="Also learn to predict the tokens after the next one, with these weights "
        "beside 1 for the next: with [0.5, 0.25] the second and third. They fall "
        "linearly to 0 in the first two thirds of the steps.",
    )
    logit_temperature: PositiveFloat = Field(
        1.0,
        description="Divides the logits in training only. A little below 1 makes the model less "
        "certain of its predictions, by which one that reads its text several times "
        "has a lower validation loss.",
    )
    loss_terms: LossTerms = Field(
        {},
        description="Terms added to the loss, by name, and their weights, such as z_loss: 1e-4 "
        "(the square of log Z).",
    )
    init_from: PathText | None = Field(
        None,
        description="Run or checkpoint whose weights, architecture and tokenizer the model begins "
        "with, for fine-tuning; characters that only the new corpus has are added. "
        "null: random weights.",
    )
    teacher: PathText | None = Field(
        None,
        description="Finished run with the same vocabulary; its best checkpoint predicts the "
        "training split, and these predictions are learned too (distillation). null: "
        "no teacher.",
    )
    teacher_weight: float = Field(
        0.5,
        gt=0,
        le=1,
        description="With teacher: weight of its predictions; the text has the rest.",
    )
    eval_interval: PositiveInt = Field(
        250, description="Steps between evaluations; each also writes a checkpoint."
    )
    eval_max_tokens: PositiveInt | None = Field(
        None,
        description="Evaluate on this many tokens from the start of the validation split; null: on "
        "all of them.",
    )
    log_interval: PositiveInt = Field(10, description="Steps between log lines.")
    keep_last: PositiveInt = Field(2, description="Checkpoints kept beside the best one.")
    sample_tokens: NonNegativeInt = Field(
        200, description="Length of the text sample at each evaluation; 0: none."
    )

    @property
    def sequences(self) -> int:
        """Return the number of sequences of an optimizer step."""
        return self.batch_size * self.grad_accum_steps

    def cross_checks(self) -> Iterator[Problem]:
        # `sum` would round after each addition, and could end just below 1.
        if math.fsum(self.length_warmup) >= 1:
            yield (
                "length_warmup",
                "leaves no steps for whole windows; lower the shares, so that their sum is below 1",
            )


class SampleConfig(Section, filter_fields()):  # type: ignore[misc]
    """How the next token is sampled, and how a sequence begins and ends.

    The order is: repetition penalty, temperature, filters (top_k and those after it), softmax,
    sampling. Temperature 0 is greedy.
    """

    max_new_tokens: NonNegativeInt = Field(500, description="Tokens to generate.")
    temperature: NonNegativeFloat = Field(
        0.8, description="Logits are divided by it; 0: always the most likely token."
    )
    repetition_penalty: PositiveFloat = Field(
        1.0, description="Above 1: tokens already in the text are less likely."
    )
    seed: Seed = Field(1337, description="Seed of the request's own generator.")
    stop: Strings = Field((), description="Stop before any of these strings.")
    end_id: NonNegativeInt | None = Field(None, description="Stop at this token; null: at none.")
    begin_id: NonNegativeInt | None = Field(
        None, description="Token before each prompt, which has no text; null: none."
    )

    def params(self, **changes: Any) -> "SamplingParams":
        """Return the parameters of a request: these values, with some of them replaced.

        Raises:
            ValidationError: a name is unknown, or a value is wrong.
        """
        return SamplingParams.model_validate({**self.model_dump(), **changes})


class SamplingParams(SampleConfig):
    """The parameters of a request: the `sample` section, and some that only a request has."""

    logprobs: NonNegativeInt | None = Field(
        None,
        description="Return each token's log-probability, and this many alternatives; null: "
        "neither.",
    )
    overflow: Literal["slide", "stop"] = Field(
        "slide", description="When the window is full: slide it by a quarter, or stop."
    )
    long_prompt: Literal["refuse", "crop"] = Field(
        "refuse", description="A prompt longer than block_size is refused, or cropped to its end."
    )
    presence_penalty: float = Field(
        0.0, ge=-2, le=2, description="Subtracted from logits of tokens in the text."
    )
    frequency_penalty: float = Field(
        0.0, ge=-2, le=2, description="Subtracted for each time a token is in the text."
    )
    logit_bias: tuple[tuple[NonNegativeInt, float], ...] = Field(
        (), description="Added to logits: (id, number) each."
    )

    # Not a field: it follows from the tokenizer, and a request cannot set it.
    _ids: int | None = PrivateAttr(None)

    @property
    def ids(self) -> int | None:
        """Return how many ids may be sampled, counted from 0; None means all ids of the model."""
        return self._ids

    def limited_to(self, ids: int) -> Self:
        """Return a copy that samples only ids below `ids`, or up to `end_id` if that is larger.

        A model's vocabulary may be larger than its tokenizer's: the ids beyond have no text.
        """
        limited = self.model_copy()
        limited._ids = ids
        if self.end_id is not None:
            # The end token often has no text, but without it a sequence could not end.
            limited._ids = max(ids, self.end_id + 1)
        return limited


class Config(Section):
    """A complete configuration."""

    run: RunConfig = Field(default_factory=RunConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    sample: SampleConfig = Field(default_factory=SampleConfig)

    def cross_checks(self) -> Iterator[Problem]:
        block_size = self.model.block_size
        # The length doubles after each share until it is block_size, so that the first steps cut a
        # window into the most pieces.
        pieces = 2 ** len(self.train.length_warmup)
        min_block_size = pieces * MIN_SEQUENCE_LENGTH
        can_be_cut = block_size % pieces == 0 and block_size >= min_block_size
        if pieces > 1 and not can_be_cut:
            yield (
                "train.length_warmup",
                f"cannot cut model.block_size {block_size} into {pieces} sequences of "
                f"{MIN_SEQUENCE_LENGTH} tokens or more; make block_size a multiple of {pieces}, "
                f"{min_block_size} or more, or leave out shares",
            )
        if self.data.items != "none":
            # Both work on windows of running text, but items are read whole.
            for key in ("length_warmup", "teacher"):
                if getattr(self.train, key):
                    yield (
                        f"train.{key}",
                        f"is for running text, and data.items is {self.data.items}",
                    )

    def without_effect(self) -> Iterator[Problem]:
        """Yield each key that was changed although other keys make it meaningless, and the reason.

        Such a key is no error: the commands only warn about it.
        """
        if self.optim.schedule == "constant":
            yield from self._changed(
                "optim", ("min_lr", "decay_steps"), "with optim.schedule: constant"
            )
        if self.train.teacher is None:
            yield from self._changed("train", ("teacher_weight",), "without train.teacher")
        if self.model.position == "learned":
            yield from self._changed("model", ("rope_theta",), "with model.position: learned")
        if self.data.items != "none":
            reason = f"with data.items: {self.data.items}, which have an order of their own"
            yield from self._changed("data", ("order",), reason)

    def _changed(self, section_name: str, keys: Sequence[str], reason: str) -> Iterator[Problem]:
        """Yield those of some keys of a section that do not have their defaults, and the reason."""
        section = getattr(self, section_name)
        for key in keys:
            value = getattr(section, key)
            if value != SECTIONS[section_name].model_fields[key].default:
                shown_value = value if isinstance(value, str) else f"{value:g}"
                yield f"{section_name}.{key}", f"{shown_value} has no effect {reason}"

    def sequence_lengths(self) -> list[tuple[int, int]]:
        """Return the lengths of the training sequences in order, each with its number of steps."""
        max_steps = self.train.max_steps
        shares = self.train.length_warmup
        # The first step, the steps at which the length doubles, and the end of the training.
        bounds = [0]
        for share_so_far in itertools.accumulate(shares):
            bounds.append(round(share_so_far * max_steps))
        bounds.append(max_steps)
        lengths = []
        for index, (begin, end) in enumerate(itertools.pairwise(bounds)):
            num_halvings = len(shares) - index
            length = self.model.block_size // 2**num_halvings
            lengths.append((length, end - begin))
        return lengths

    def leaves(self) -> dict[str, Any]:
        """Return every value as JSON has it, by its `section.key`."""
        leaves = {}
        for name, section in self.model_dump(mode="json").items():
            for key, value in section.items():
                leaves[f"{name}.{key}"] = value
        return leaves


SECTIONS: dict[str, type[Section]] = {name: type(section) for name, section in Config()}
"""The sections of a configuration, by name."""
