"""`gpt import-model`: convert a model that another program has trained to a checkpoint."""

import argparse
from pathlib import Path

from gpt.cli.command import load_torch, report
from gpt.cli.config_options import require_free
from gpt.cli.shared_options import command, to_path
from gpt.system.errors import ConfigError, DataError, InputError
from gpt.system.progress import announce_if_slow

NAMES_OF_ITEMS = {
    "lines": "a list",
    "paragraphs": "texts between empty lines",
    "pairs": "questions and answers",
}
"""What a model was trained on, by the value of `data.items`."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    # `arguments.from` would be a syntax error, since `from` is a keyword of Python.
    formats = ("hf", "nanogpt")
    parser.add_argument(
        "--from", dest="source", choices=formats, required=True, help="format to read"
    )
    parser.add_argument(
        "--input", type=to_path, required=True, metavar="PATH", help="folder, or ckpt.pt"
    )
    meta = "nanogpt: meta.pkl with the characters (default: beside ckpt.pt)"
    parser.add_argument("--meta", type=to_path, metavar="FILE", help=meta)
    output = "checkpoint folder to write (default: the input folder's name, in runs)"
    parser.add_argument("--output", type=to_path, metavar="DIR", help=output)


@command(
    "import-model",
    "Make a checkpoint of a model that another program has trained. "
    "hf: a folder of transformers, with safetensors and a tokenizer.json; "
    "nanogpt: a ckpt.pt with the meta.pkl of its data beside it. No code in them is run.",
    "--from hf --input gpt2 --output runs/gpt2",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output or default_output(arguments.input)
    require_free(output)
    if arguments.meta is not None and arguments.source != "nanogpt":
        raise ConfigError(f"--meta has no effect with --from {arguments.source}; it is for nanogpt")

    load_torch()
    from gpt.checkpoint import bare_checkpoint, write_checkpoint
    from gpt.config import SampleConfig
    from gpt.extras.export.hugging_face import ImportedTexts, import_folder, read_texts
    from gpt.extras.export.nanogpt import import_checkpoint

    # nanoGPT's characters have no token that ends a text
    texts = ImportedTexts("none", SampleConfig())
    try:
        with announce_if_slow(report, f"reading {arguments.input}"):
            if arguments.source == "hf":
                model, tokenizer = import_folder(arguments.input)
                texts = read_texts(arguments.input, model, tokenizer)
            else:
                model, tokenizer = import_checkpoint(arguments.input, arguments.meta)
    except (InputError, DataError) as error:
        raise InputError(f"{arguments.input} cannot be imported: {error}") from None
    with announce_if_slow(report, f"writing {output}"):
        checkpoint = bare_checkpoint(model, tokenizer, sample=texts.sample, items=texts.items)
        write_checkpoint(output, checkpoint)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    report(
        f"{output}: {parameters:,} parameters, {tokenizer.vocab_size:,} tokens in the vocabulary"
    )
    if texts.items != "none":
        report(
            f"{output}: it writes as the run on {NAMES_OF_ITEMS[texts.items]} that was exported; "
            "the items of that run are not in the folder, so that evaluate needs --text-file, and "
            "sample cannot mark what was trained on"
        )
    return 0


def default_output(source: Path) -> Path:
    """Return a folder below runs that is named after the folder of the imported files."""
    folder = source.parent if source.is_file() else source
    return Path("runs", folder.resolve().name)
