"""`gpt export`: write a trained model in a format that other programs read."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli.command import load_torch, report
from gpt.cli.config_options import require_free
from gpt.cli.shared_options import add_checkpoint_options, command, to_path
from gpt.cli.tables import human_bytes
from gpt.system.errors import ConfigError, GPTError, InputError
from gpt.system.files import sync_file, sync_folder, temporary_folder
from gpt.system.progress import announce_if_slow

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded

ENDINGS = {"html": ".html", "png": ".png", "hf": "-hf", "gguf": ".gguf"}
"""What is appended to the name of a run to name its export."""
USES = {
    "html": "open it in a browser",
    "png": "it shows a text that the model wrote",
    "hf": "AutoModelForCausalLM.from_pretrained({output!r}) loads it",
    "gguf": "llama-cli -m {output} runs it",
}
"""What to do with an export, for the last message."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", choices=tuple(WRITERS), required=True, help="format to write")
    add_checkpoint_options(parser, with_device=False)
    parser.add_argument(
        "--weights",
        choices=("fp16", "int8", "q8_0", "float32"),
        help="format of the weights: fp16, int8 or float32 in a page (default: fp16), "
        "q8_0 or float32 in a GGUF file (default: float32)",
    )
    endings = ", ".join(ENDINGS.values())
    output = f"file or folder to write (default: the run's name with {endings}, in this folder)"
    parser.add_argument("--output", type=to_path, metavar="PATH", help=output)


@command(
    "export",
    "Write a trained model in another format. "
    "html: one file that runs the model in any browser, offline. "
    "png: a picture of a text that it writes, each character on the color of its probability. "
    "hf: a folder that transformers loads. gguf: one file that llama.cpp runs.",
    "--to html --checkpoint runs/shakespeare --output shakespeare.html",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    weights = arguments.weights
    if weights is not None and weights not in FORMATS[arguments.to]:
        known = ", ".join(FORMATS[arguments.to]) or NO_FORMATS[arguments.to]
        raise ConfigError(f"--weights {weights} is not for --to {arguments.to}, which has {known}")
    # Asked before torch and the model are loaded, which takes seconds.
    if arguments.output is not None:
        require_free(arguments.output)
    load_torch()
    import torch

    from gpt.checkpoint import load_trained
    from gpt.extras.export.coverage import require_as_configured

    loaded = load_trained(arguments.checkpoint, arguments.runs, torch.device("cpu"))
    output: Path = arguments.output or Path(_name(loaded) + ENDINGS[arguments.to])
    require_free(output)
    write = WRITERS[arguments.to]
    try:
        require_as_configured(loaded.model)
        output.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(output) as folder:
            staged = folder / output.name
            with announce_if_slow(report, f"writing {output}"):
                lost_defaults = write(weights, loaded, staged)
            size = _synchronize(staged)
            staged.replace(output)  # an export is there as a whole, or not at all
        sync_folder(output.parent)
    except InputError as error:
        raise InputError(f"{loaded.folder} cannot be exported: {error}") from None
    except OSError as error:
        raise GPTError(f"cannot write {output}: {error.strerror or error}") from None
    use = USES[arguments.to].format(output=str(output))
    report(f"{loaded.folder}: written to {output}, {human_bytes(size)}; {use}")
    if lost_defaults:
        report(f"not in {output}: {', '.join(lost_defaults)}")
    return 0


def _synchronize(staged: Path) -> int:
    """Wait until a file, or every file of a folder, is on the disk, and return their bytes."""
    files = [staged]
    if staged.is_dir():
        sync_folder(staged)
        files = [file for file in staged.rglob("*") if file.is_file()]
    for file in files:
        sync_file(file)
    return sum(file.stat().st_size for file in files)


def _write_html(given_weights: str | None, loaded: "Loaded", staged: Path) -> list[str]:
    from gpt.checkpoint import RunFolder
    from gpt.extras.about import about_loaded
    from gpt.extras.export.html import PageWords, learning_of, not_in_page, render_model_page
    from gpt.extras.inspection.example import example_of
    from gpt.extras.inspection.validation_examples import validation_examples

    weights = given_weights or "fp16"
    sample = loaded.config.sample
    about = about_loaded(loaded)
    name = _name(loaded)
    note = f"{name}, a small GPT, runs in this page: what you type stays here."
    words = PageWords(
        title=about.headline,
        note=note,
        example=example_of(loaded),
        examples=validation_examples(loaded),
        about=about,
        name=name,
    )
    # A checkpoint is runs/NAME/checkpoints/step-N; for one outside of a run there are no snapshots.
    run = RunFolder(loaded.folder.parent.parent)
    last_step = int(loaded.state.get("step", 0))
    page = render_model_page(
        loaded.model,
        loaded.tokenizer,
        weights,
        sample,
        words,
        learning=learning_of(run, loaded.config, last_step, loaded.state.get("best_val_loss")),
    )
    # An export has the same bytes on every system, so not the line ends of Windows.
    staged.write_text(page, encoding="utf-8", newline="\n")
    return not_in_page(sample)


def _write_png(given_weights: str | None, loaded: "Loaded", staged: Path) -> list[str]:
    from gpt.extras.export.card import render_card

    staged.write_bytes(render_card(loaded))
    return []


def _write_hugging_face(given_weights: str | None, loaded: "Loaded", staged: Path) -> list[str]:
    from gpt.extras.export.hugging_face import export_files, not_in_folder

    sample = loaded.config.sample
    staged.mkdir()
    for name, content in export_files(loaded.model, loaded.tokenizer, sample).items():
        (staged / name).write_bytes(content)
    return not_in_folder(loaded.tokenizer, sample)


def _write_gguf(given_weights: str | None, loaded: "Loaded", staged: Path) -> list[str]:
    from gpt.extras.export.gguf_file import not_in_file, write_gguf

    weights = given_weights or "float32"
    sample = loaded.config.sample
    write_gguf(staged, loaded.model, loaded.tokenizer, weights, _name(loaded), sample)
    return not_in_file(loaded.tokenizer, sample)


def _name(loaded: "Loaded") -> str:
    from gpt.checkpoint import name_of_model

    return name_of_model(loaded.folder, loaded.config)


Writer = Callable[[str | None, "Loaded", Path], list[str]]
"""Writes a model to a path, given the value of --weights.

It returns the sampling defaults that its format has no place for.
"""
WRITERS: dict[str, Writer] = {
    "html": _write_html,
    "png": _write_png,
    "hf": _write_hugging_face,
    "gguf": _write_gguf,
}
"""The writer of each value of --to."""
FORMATS = {
    "html": ("fp16", "int8", "float32"),
    "png": (),
    "hf": (),
    "gguf": ("float32", "q8_0"),
}
"""Values of --weights for each value of --to."""
NO_FORMATS = {"png": "no weights", "hf": "no other than float32"}
"""What is said of a format of the model that takes no --weights."""
