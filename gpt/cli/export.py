"""`gpt export`: write a trained model in a format that other programs read."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli.command import load_torch, report
from gpt.cli.shared_options import add_checkpoint_options, command, to_path
from gpt.cli.tables import human_bytes
from gpt.system.errors import ConfigError, GPTError, InputError
from gpt.system.files import sync_file, sync_folder, temporary_folder
from gpt.system.progress import announced

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", choices=tuple(WRITERS), required=True, help="format to write")
    add_checkpoint_options(parser, with_device=False)
    parser.add_argument(
        "--weights",
        choices=("fp16", "int8", "q8_0", "float32"),
        help="format of the weights: fp16, int8 or float32 in a page (default: fp16), q8_0 or float32 in a GGUF file "
        "(default: float32)",
    )
    parser.add_argument("--output", type=to_path, required=True, metavar="PATH", help="file or folder to write")


@command(
    "export",
    "Write a trained model in another format. html: one file that runs the model in any browser, offline. "
    "hf: a folder that transformers loads. gguf: one file that llama.cpp runs.",
    "--to html --checkpoint runs/shakespeare --output shakespeare.html",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output
    if arguments.weights not in (None, *FORMATS[arguments.to]):
        known = ", ".join(FORMATS[arguments.to]) or "no other than float32"
        raise ConfigError(f"--weights {arguments.weights} is not for --to {arguments.to}, which has {known}")
    if output.exists():
        raise GPTError(f"{output} exists already; choose another --output, or remove it")
    load_torch()
    import torch

    from gpt.checkpoint import load_trained
    from gpt.extras.export.coverage import require_as_configured

    loaded = load_trained(arguments.checkpoint, arguments.runs, torch.device("cpu"))
    try:
        require_as_configured(loaded.model)
        with temporary_folder(output) as folder:
            staged = folder / output.name
            with announced(report, f"writing {output}"):
                remedy = WRITERS[arguments.to](arguments, loaded, staged)
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
    report(f"{loaded.folder}: written to {output}, {human_bytes(size)}; {remedy}")
    return 0


def _write_html(arguments: argparse.Namespace, loaded: "Loaded", staged: Path) -> str:
    from gpt.checkpoint import RunFolder
    from gpt.extras.export.html import learning_of, render_model_page
    from gpt.extras.inspection.example import example_of
    from gpt.extras.inspection.views.tokens import kind_of

    shape, sample, weights = loaded.config.model, loaded.config.sample, arguments.weights or "fp16"
    count = sum(parameter.numel() for parameter in loaded.model.parameters())
    title = f"{_name(loaded)}: {count:,} numbers that learned to write"
    window = f"{shape.block_size} {kind_of(loaded.tokenizer)}s"
    note = (
        f"A GPT of {shape.n_layer} layers, {shape.n_head} heads and width {shape.n_embd} runs in this page, without a "
        f"server; it sees {window}, with {weights} weights. What you type stays here."
    )
    run = RunFolder(loaded.folder.parent.parent)  # of runs/name/checkpoints/step-1
    learning = learning_of(run, loaded.config, int(loaded.state.get("step", 0)))
    page = render_model_page(loaded.model, loaded.tokenizer, weights, sample, title, note, example_of(loaded), learning)
    staged.write_text(page, encoding="utf-8", newline="\n")
    return "open it in a browser"


def _write_hugging_face(arguments: argparse.Namespace, loaded: "Loaded", staged: Path) -> str:
    from gpt.extras.export.hugging_face import export_files

    staged.mkdir()
    for name, content in export_files(loaded.model, loaded.tokenizer, loaded.config.sample).items():
        (staged / name).write_bytes(content)
    return f"AutoModelForCausalLM.from_pretrained({str(arguments.output)!r}) loads it"


def _write_gguf(arguments: argparse.Namespace, loaded: "Loaded", staged: Path) -> str:
    from gpt.extras.export.gguf_file import write_gguf

    weights, name, end_id = arguments.weights or "float32", _name(loaded), loaded.config.sample.end_id
    write_gguf(staged, loaded.model, loaded.tokenizer, weights, name, end_id)
    return f"llama-cli -m {arguments.output} runs it"


def _name(loaded: "Loaded") -> str:
    return loaded.config.run.name or loaded.folder.name


WRITERS: dict[str, Callable[[argparse.Namespace, "Loaded", Path], str]] = {
    "html": _write_html,
    "hf": _write_hugging_face,
    "gguf": _write_gguf,
}
FORMATS = {"html": ("fp16", "int8", "float32"), "hf": (), "gguf": ("float32", "q8_0")}
"""Formats of weights that can be chosen."""
