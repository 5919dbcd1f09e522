"""Where the texts of a model begin and end, for the pages that write them."""

from typing import Any

from gpt.config import SampleConfig
from gpt.data.items import item_ids
from gpt.data.pairs import ANSWER, TURN
from gpt.data.tokenizers import Tokenizer


def marks_of(tokenizer: Tokenizer, params: SampleConfig) -> dict[str, Any]:
    """Return the marks of a model, as `gpt/extras/web/src/marks.js` describes them.

    What the model was trained on follows from its sampling parameters, which a run on items fills
    in: a list begins each item with the token that ends one, and an answer ends at `TURN` too.
    """
    marks: dict[str, Any] = {
        "kind": "text",
        "begin": params.begin_id,
        "ends": [] if params.end_id is None else [params.end_id],
        "answer": "",
        "turn": "",
    }
    if TURN in params.stop:
        turn_id = item_ids("pairs", tokenizer).turn
        marks["kind"] = "answers"
        marks["ends"].append(turn_id)
        marks["answer"] = ANSWER
        marks["turn"] = TURN
    elif params.begin_id is not None and params.begin_id == params.end_id:
        marks["kind"] = "items"
    return marks
