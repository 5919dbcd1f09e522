"""The text that a model writes at a snapshot: always after the same prompt, with the same seed."""

import copy
import re
from typing import Any

import numpy as np
from torch import nn

from gpt.config import Config, SamplingParams
from gpt.config.ranges import SEEDS
from gpt.data.dataset import Dataset
from gpt.data.pairs import with_signs
from gpt.data.tokenizers import Tokenizer
from gpt.generation.batch import TextBatch
from gpt.generation.runtime import Runtime, build_runtime
from gpt.model import GPT
from gpt.native.cache import kernels_folder
from gpt.native.decoding.decoder import SOURCE
from gpt.native.verdicts import was_tried
from gpt.system.environment import read_settings
from gpt.system.progress import silent
from gpt.training.validation import first_question

TEXT_CHARACTERS = 200
"""Characters of a text: some lines, so that one sees words, sentences and their form."""
MAX_TOKENS_PER_CHARACTER = 4
"""A character of UTF-8 has at most four bytes, and a token at least one."""
MAX_ITEMS = 16
"""Most items of a list in a text, since each of them takes a request of its own."""
SEARCHED_TOKENS = 20_000
"""Tokens of the validation split in which a prompt is looked for: dozens of paragraphs."""
MAX_PROMPT_CHARACTERS = 60
"""Longest prompt: most of what a reader sees is to be the model's."""
EMPTY_LINE = re.compile(r"(?:^|\n)[ \t]*\n")
"""What is before a paragraph."""
SENTENCE_END = re.compile(
    "[.!?\u2026][\"'\u201d\u2019)]*(?=\\s|$)"
    "|:(?=\\n\\S)"  # after the name before a speech
    "|[\u3002\uff01\uff1f]"  # in Chinese and Japanese, where no space follows
)
"""The end of a sentence, with the quotation marks and brackets after it."""


def beginning_of(text: str, max_characters: int = MAX_PROMPT_CHARACTERS) -> str:
    """Return how a paragraph of a text begins: up to the end of a first sentence that is short.

    Where no sentence is so short, the result ends with a whole word. A paragraph follows an empty
    line, and begins with a letter, but no small one. The result is empty where there is none: the
    text itself may begin within a word.
    """
    words = ""
    for empty_line in EMPTY_LINE.finditer(text):
        start = empty_line.end()
        # One character more, which shows whether a word or a sentence ends at the last one.
        beginning = EMPTY_LINE.split(text[start : start + max_characters + 1])[0]
        if not beginning[:1].isalpha() or beginning[0].islower():
            continue
        sentence = SENTENCE_END.search(beginning)
        if sentence is not None and sentence.end() <= max_characters:
            return beginning[: sentence.end()]
        if not words and len(beginning) > max_characters:
            words = beginning.rpartition(" ")[0]
    return words


def prompt_of(dataset: Dataset, config: Config) -> str:
    """Return the prompt of all texts of a run: what the model reads before it writes.

    It is the beginning of a paragraph of the validation split; for a model of questions and answers
    the first question there, with the mark after it. A model of a list begins its items itself, and
    has an empty prompt.
    """
    tokenizer = dataset.tokenizer
    block_size = config.model.block_size
    if dataset.has_answers:
        ids = first_question(dataset, block_size)
        return tokenizer.decode(ids[1:])  # the first one is the mark before the question
    if dataset.items is not None:
        return ""
    text = tokenizer.decode(np.asarray(dataset.val[:SEARCHED_TOKENS]))
    prompt = beginning_of(text)
    # Half a window at most, so that the model sees what it wrote itself, too.
    if len(tokenizer.encode(prompt)) > block_size // 2:
        return ""
    return prompt


def decoding_runtime(model: GPT, kernels: str) -> Runtime:
    """Return a runtime on the CPU for the present weights of a model that is being trained.

    A GPU would decode a single text hardly faster. The C++ decoder is used if an earlier command
    has compiled it: to compile and try it would hold up the training for ten seconds.

    Args:
        kernels: the value of `run.kernels`.
    """
    if model.wte.weight.device.type != "cpu":
        model = copy_to_cpu(model)
    folder = kernels_folder(read_settings().cache_dir)
    if kernels == "torch" or not was_tried(folder, SOURCE):
        return Runtime(model)
    return build_runtime(model, report=silent)


def copy_to_cpu(model: GPT) -> GPT:
    """Return a copy of a model on the CPU, for which a GPU needs no memory."""
    copies: dict[int, Any] = {}
    for parameter in model.parameters():
        copies[id(parameter)] = nn.Parameter(parameter.detach().to("cpu"), requires_grad=False)
    for buffer in model.buffers():
        copies[id(buffer)] = buffer.to("cpu")
    # `deepcopy` takes what it finds here by the id of an object in place of copying it.
    return copy.deepcopy(model, copies)


def write_text(runtime: Runtime, dataset: Dataset, config: Config, prompt: str) -> str:
    """Return what a model writes after the prompt of its run, without the prompt.

    A model of a list writes one item after another, in lines. Signs stand for marks.
    """
    fixed = {
        "max_new_tokens": TEXT_CHARACTERS * MAX_TOKENS_PER_CHARACTER,
        "overflow": "slide",
        "long_prompt": "crop",
    }
    params = config.sample.params(**fixed)
    tokenizer = dataset.tokenizer
    is_list = dataset.items is not None and not dataset.has_answers
    if not is_list:
        return with_signs(_continue(runtime, tokenizer, prompt, params))
    items: list[str] = []
    for number in range(MAX_ITEMS):
        seed = (params.seed + number) % SEEDS
        seeded = params.model_copy(update={"seed": seed})
        items.append(_continue(runtime, tokenizer, prompt, seeded))
        if sum(map(len, items)) >= TEXT_CHARACTERS:
            break
    return with_signs("\n".join(items)[:TEXT_CHARACTERS])


def _continue(runtime: Runtime, tokenizer: Tokenizer, prompt: str, params: SamplingParams) -> str:
    """Return the first characters of what a model writes after a prompt."""
    text = ""
    for chunk in TextBatch(runtime, tokenizer, [prompt], params):
        text += chunk.text
        if len(text) >= TEXT_CHARACTERS:
            break
    return text[:TEXT_CHARACTERS]
