"""`gpt prepare-data`: download and encode a corpus, without training."""

import argparse

from gpt.cli.command import report
from gpt.cli.config_options import add_config_options, read_config
from gpt.cli.shared_options import command
from gpt.system.environment import read_settings


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    parser.add_argument(
        "--offline", action="store_true", help="never use the network (also GPT_OFFLINE=1)"
    )


@command(
    "prepare-data",
    "Download and encode the corpus of a configuration. Training does this itself if necessary.",
    "--config quickstart data.source=file data.path='my/*.txt'",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    config = read_config(arguments).config
    from gpt.data.preparation import check_length, prepare

    settings = read_settings(arguments.offline)
    dataset = prepare(config.data, settings, report)
    check_length(dataset, config.data, settings, config.model.block_size)
    test = "" if dataset.test is None else f" and {len(dataset.test):,} test"
    print(
        f"{len(dataset.train):,} training and {len(dataset.val):,} validation{test} tokens, "
        f"vocabulary of {dataset.tokenizer.vocab_size} tokens, {dataset.train.dtype} on disk"
    )
    return 0
