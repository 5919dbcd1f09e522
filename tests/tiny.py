"""What many tests are made of: a text and a model of a size that costs a millisecond."""

from gpt.config import ModelConfig

CORPUS = (
    "It was the best of rooms, it was the worst of rooms; every door had a key, every key had a door.\n"
    "Who keeps the keys? asked Ada. The keeper, said Tom, and the keeper sleeps till seven.\n"
)


def tiny_config(**changes: object) -> ModelConfig:
    """2 layers, 4 heads, 32 wide, 16 positions, 23 ids."""
    values = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 16, "vocab_size": 23, **changes}
    return ModelConfig.model_validate(values)
