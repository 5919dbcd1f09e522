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
from gpt.system.progress import announced

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded

ENDINGS = {"html": ".html", "hf": "-hf", "gguf": ".gguf"}
"""What the name of a run becomes the name of its export with."""
USES = {
    "html": "open it in a browser",
    "hf": "AutoModelForCausalLM.from_pretrained({output!r}) loads it",
    "gguf": "llama-cli -m {output} runs it",
}
"""What to do with an export."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", choices=tuple(WRITERS), required=True, help="format to write")
    add_checkpoint_options(parser, with_device=False)
    parser.add_argument(
        "--weights",
        choices=("fp16", "int8", "q8_0", "float32"),
        help="format of the weights: fp16, int8 or float32 in a page (default: fp16), q8_0 or float32 in a GGUF file "
        "(default: float32)",
    )
    endings = ", ".join(ENDINGS.values())
    output = f"file or folder to write (default: the run's name with {endings}, in this folder)"
    parser.add_argument("--output", type=to_path, metavar="PATH", help=output)


@command(
    "export",
    "Write a trained model in another format. html: one file that runs the model in any browser, offline. "
    "hf: a folder that transformers loads. gguf: one file that llama.cpp runs.",
    "--to html --checkpoint runs/shakespeare --output shakespeare.html",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    if arguments.weights not in (None, *FORMATS[arguments.to]):
        known = ", ".join(FORMATS[arguments.to]) or "no other than float32"
        raise ConfigError(
            f"--weights {arguments.weights} is not for --to {arguments.to}, which has {known}"
        )
    if arguments.output is not None:
        require_free(arguments.output)
    load_torch()
    import torch

    from gpt.checkpoint import load_trained
    from gpt.extras.export.coverage import require_as_configured

    loaded = load_trained(arguments.checkpoint, arguments.runs, torch.device("cpu"))
    output: Path = arguments.output or Path(_name(loaded) + ENDINGS[arguments.to])
    require_free(output)
    try:
        require_as_configured(loaded.model)
        output.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(output) as folder:
            staged = folder / output.name
            with announced(report, f"writing {output}"):
                lost = WRITERS[arguments.to](arguments.weights, loaded, staged)
            if staged.is_dir():
                sync_folder(staged)
            files = [file for file in (staged, *staged.rglob("*")) if file.is_file()]
            for file in files:
                sync_file(file)
            size = sum(file.stat().st_size for file in files)
            staged.replace(output)
        sync_folder(output.parent)
    except InputError as error:
        raise InputError(f"{loaded.folder} cannot be exported: {error}") from None
    except OSError as error:
        raise GPTError(f"cannot write {output}: {error.strerror or error}") from None
    use = USES[arguments.to].format(output=str(output))
    report(f"{loaded.folder}: written to {output}, {human_bytes(size)}; {use}")
    if lost:
        report(f"not in {output}: {', '.join(lost)}")
    return 0


def _write_html(given_weights: str | None, loaded: "Loaded", staged: Path) -> list[str]:
    from gpt.checkpoint import RunFolder
    from gpt.extras.export.html import learning_of, not_in_page, render_model_page
    from gpt.extras.inspection.example import example_of
    from gpt.extras.inspection.views.tokens import kind_of

    shape, sample, weights = loaded.config.model, loaded.config.sample, given_weights or "fp16"
    count = sum(parameter.numel() for parameter in loaded.model.parameters())
    title = f"{_name(loaded)}: {count:,} numbers that learned to write"
    window = f"{shape.block_size} {kind_of(loaded.tokenizer)}s"
    note = (
        f"A GPT of {shape.n_layer} layers, {shape.n_head} heads and width {shape.n_embd} runs in this page, without a "
        f"server; it sees {window}, with {weights} weights. What you type stays here."
    )
    run = RunFolder(loaded.folder.parent.parent)  # of runs/name/checkpoints/step-1
    learning = learning_of(run, loaded.config, int(loaded.state.get("step", 0)))
    page = render_model_page(
        loaded.model, loaded.tokenizer, weights, sample, title, note, example_of(loaded), learning
    )
    staged.write_text(page, encoding="utf-8", newline="\n")
    return not_in_page(sample)


def _write_hugging_face(given_weights: str | None, loaded: "Loaded", staged: Path) -> list[str]:
    from gpt.extras.export.hugging_face import export_files, not_in_folder

    sample = loaded.config.sample
    staged.mkdir()
    for name, content in export_files(loaded.model, loaded.tokenizer, sample).items():
        (staged / name).write_bytes(content)
    return not_in_folder(loaded.tokenizer, sample)


def _write_gguf(given_weights: str | None, loaded: "Loaded", staged: Path) -> list[str]:
    from gpt.extras.export.coverage import unknown_defaults
    from gpt.extras.export.gguf_file import write_gguf

    sample, weights = loaded.config.sample, given_weights or "float32"
    write_gguf(staged, loaded.model, loaded.tokenizer, weights, _name(loaded), sample.end_id)
    return unknown_defaults(sample, {"end_id"})


def _name(loaded: "Loaded") -> str:
    from gpt.checkpoint import name_of_model

    return name_of_model(loaded.folder, loaded.config)


WRITERS: dict[str, Callable[[str | None, "Loaded", Path], list[str]]] = {
    "html": _write_html,
    "hf": _write_hugging_face,
    "gguf": _write_gguf,
}
"""Each is given --weights, and returns the sampling defaults that its format has no place for."""
FORMATS = {"html": ("fp16", "int8", "float32"), "hf": (), "gguf": ("float32", "q8_0")}
"""Formats of weights that can be chosen."""
