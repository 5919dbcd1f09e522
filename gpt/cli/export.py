"""`scripts/export.py`: write a trained model in a format that other programs read."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli.command import CommandParser, load_torch, report, run_command
from gpt.cli.shared_options import add_checkpoint_options, load_given_plugins, to_path
from gpt.cli.tables import human_bytes
from gpt.errors import ConfigError, GPTError, InputError
from gpt.files import require_replaceable, sync_file, temporary_folder, write_atomic, write_folder

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped."""
    return run_command(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    load_given_plugins(argv)
    parser = CommandParser(
        "Write a trained model in another format. html: one file that runs the model in any browser, offline. "
        "hf: a folder that transformers, vLLM and SGLang load. gguf: one file that llama.cpp runs. onnx: one file that "
        "onnxruntime runs.",
        'python scripts/export.py --to html --checkpoint runs/shakespeare --prompt "ROMEO:" --output shakespeare.html',
    )
    parser.add_argument("--to", choices=tuple(WRITERS), required=True, help="format to write")
    add_checkpoint_options(parser, with_device=False)
    parser.add_argument(
        "--weights",
        choices=("fp16", "int8", "q8_0", "float32"),
        help="format of the weights: fp16, int8 or float32 in a page (default: fp16), q8_0 or float32 in a GGUF file "
        "(default: float32)",
    )
    parser.add_argument("--prompt", metavar="TEXT", help="html: prompt that the page starts with (default: none)")
    parser.add_argument("--output", type=to_path, required=True, metavar="PATH", help="file or folder to write")
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output
    if arguments.prompt is not None and arguments.to != "html":
        raise ConfigError(f"--prompt has no effect with --to {arguments.to}; it is for html")
    if arguments.weights not in (None, *FORMATS[arguments.to]):
        known = ", ".join(FORMATS[arguments.to]) or "no other than float32"
        raise ConfigError(f"--weights {arguments.weights} is not for --to {arguments.to}, which has {known}")
    if arguments.to == "hf" and output.exists():
        raise GPTError(f"{output} exists already; choose another --output, or remove it")
    if output.is_dir():
        raise GPTError(f"{output} is a folder; --output names a file")
    if (output.parent / "manifest.json").is_file():
        raise GPTError(f"{output.parent} is a checkpoint, which would be damaged; choose another --output")
    if not output.parent.is_dir():
        raise GPTError(f"{output.parent} is not a folder; make it first, or choose another --output")

    load_torch()
    import torch

    from gpt.checkpoint import load_trained

    loaded = load_trained(arguments.checkpoint, arguments.runs, torch.device("cpu"))
    try:
        size, remedy = WRITERS[arguments.to](arguments, loaded)
    except InputError as error:
        raise InputError(f"{loaded.folder} cannot be exported: {error}") from None
    except OSError as error:
        raise GPTError(f"cannot write {output}: {error.strerror or error}") from None
    report(f"{loaded.folder}: written to {output}, {human_bytes(size)}; {remedy}")
    return 0


def _write_html(arguments: argparse.Namespace, loaded: "Loaded") -> tuple[int, str]:
    """Write a page; return its bytes, and what to do with it."""
    from gpt.interop.html import render_model_page

    shape, weights = loaded.config.model, arguments.weights or "fp16"
    note = (
        f"{_parameters(loaded):,} parameters: {shape.n_layer} layers, {shape.n_head} heads, width {shape.n_embd}, "
        f"context of {shape.block_size} tokens; {weights} weights. The model runs in this page; nothing leaves it."
    )
    page = render_model_page(
        loaded.model,
        loaded.tokenizer,
        weights,
        loaded.config.sample,
        arguments.prompt or "",
        _name(loaded),
        note,
    ).encode()
    write_atomic(arguments.output, page)
    return len(page), "open it in a browser"


def _write_hugging_face(arguments: argparse.Namespace, loaded: "Loaded") -> tuple[int, str]:
    """Write a folder for transformers; return its bytes, and what to do with it."""
    from gpt.interop.hugging_face import export_files
    from gpt.interop.model_card import model_card

    card = model_card(_name(loaded), loaded.config, loaded.state, _parameters(loaded))
    files = export_files(loaded.model, loaded.tokenizer, loaded.config.sample, card)
    write_folder(arguments.output, files)
    return sum(map(len, files.values())), f"AutoModelForCausalLM.from_pretrained({str(arguments.output)!r}) loads it"


def _write_gguf(arguments: argparse.Namespace, loaded: "Loaded") -> tuple[int, str]:
    """Write a GGUF file; return its bytes, and what to do with it."""
    from gpt.interop.gguf_file import write_gguf

    weights, name, end_id = arguments.weights or "float32", _name(loaded), loaded.config.sample.end_id
    size = _write_file(
        arguments.output, lambda file: write_gguf(file, loaded.model, loaded.tokenizer, weights, name, end_id)
    )
    return size, f"llama-cli -m {arguments.output} runs it"


def _write_onnx(arguments: argparse.Namespace, loaded: "Loaded") -> tuple[int, str]:
    """Write an ONNX file; return its bytes, and what to do with it."""
    from gpt.interop.onnx_file import write_onnx

    size = _write_file(arguments.output, lambda file: write_onnx(file, loaded.model, loaded.tokenizer))
    return size, f"onnxruntime.InferenceSession({str(arguments.output)!r}) loads it"


def _write_file(output: Path, write: Callable[[Path], None]) -> int:
    """Write a file by a function that writes to a path, so that it appears whole or not at all; return its bytes."""
    require_replaceable(output)
    with temporary_folder(output) as folder:
        file = folder / output.name
        write(file)
        sync_file(file)
        file.replace(output)
    return output.stat().st_size


def _parameters(loaded: "Loaded") -> int:
    return sum(parameter.numel() for parameter in loaded.model.parameters())


def _name(loaded: "Loaded") -> str:
    return loaded.config.run.name or loaded.folder.name


WRITERS: dict[str, Callable[[argparse.Namespace, "Loaded"], tuple[int, str]]] = {
    "html": _write_html,
    "hf": _write_hugging_face,
    "gguf": _write_gguf,
    "onnx": _write_onnx,
}
FORMATS = {"html": ("fp16", "int8", "float32"), "hf": (), "gguf": ("float32", "q8_0"), "onnx": ()}
"""Formats of weights that can be chosen."""
