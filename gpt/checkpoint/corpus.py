"""Read the corpus that a checkpoint was trained on from the token files of its training."""

from gpt.checkpoint.loading import Loaded
from gpt.data.dataset import META, Dataset, join_texts, open_dataset, token_folders
from gpt.system.environment import expand_home
from gpt.system.errors import ConfigError
from gpt.system.invocation import command_line


def training_dataset(loaded: Loaded) -> Dataset:
    """Open the token files that a checkpoint was trained on.

    Raises:
        ConfigError: the checkpoint does not name its token files, or the files are gone or have
            another tokenizer.
    """
    if "data" not in loaded.state:
        raise ConfigError(
            f"{loaded.folder} has no record of its training corpus; give a text with --text-file"
        )
    tokens_folder = expand_home(loaded.config.data.dir, "data.dir") / "tokens"
    # The fingerprints of all texts that the model was trained on are in one string of the state.
    # Each text has a folder of token files, which is named by its fingerprint.
    folders = token_folders(tokens_folder, str(loaded.state["data"]))
    for folder in folders:
        if not (folder / META).is_file():
            prepare = command_line("prepare-data", "--config", str(loaded.folder / "config.yaml"))
            raise ConfigError(
                f"the tokens that {loaded.folder} was trained on are not in {folder}; "
                f"encode its corpus again: {prepare}, or give a text with --text-file"
            )
    dataset = join_texts([open_dataset(folder) for folder in folders])
    if dataset.tokenizer.to_dict() != loaded.tokenizer.to_dict():
        raise ConfigError(
            f"{loaded.folder} has a different tokenizer than the tokens in {folders[0]}"
        )
    return dataset


def training_items(dataset: Dataset) -> frozenset[str]:
    """Return the texts of the items of the training split, without their end tokens."""
    assert dataset.items is not None
    end = dataset.tokenizer.decode([dataset.items.end])
    texts = dataset.tokenizer.decode(dataset.train).split(end)
    # The last of these texts is empty: it follows the end of the last item.
    return frozenset(texts[:-1])
