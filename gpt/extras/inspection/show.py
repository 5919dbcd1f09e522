"""Show a model in a notebook: what it looks at, what it expects, and what it is made of.

    gpt.show.attention(model, tokenizer, "To be, or not to be")

The last value of a cell shows itself. Outside of a notebook, `save` writes a page that a browser
opens.
"""

from gpt.data.token_ids import TextOrIds
from gpt.data.tokenizers import Tokenizer
from gpt.extras.accounting.parameters import count_parameters
from gpt.extras.inspection.rendering.model_tables import component_table
from gpt.extras.inspection.rendering.pages import Page
from gpt.extras.inspection.rendering.tables import Table
from gpt.extras.inspection.tracing.activation_cache import Edits, one_text
from gpt.extras.inspection.views.attention import attention_view
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.picture import picture_view
from gpt.model import GPT


def attention(
    model: GPT,
    tokenizer: Tokenizer,
    text: TextOrIds,
    layer: int | None = None,
    head: int | None = None,
    edits: Edits | None = None,
) -> Page:
    """Show where every head attends in a text, or in ids (T,).

    Args:
        layer: the layer of the head that is shown first, counted from 0; None: the most telling.
        head: the number of that head, counted from 0; None: the most telling.
        edits: see `run_with_cache`.
    """
    idx = one_text(model, text, tokenizer, 1, "gpt.show.attention")
    view = attention_view(model, tokenizer, idx, edits)
    return Page("attention", "Attention", "", {**view, "layer": layer, "head": head})


def lens(model: GPT, tokenizer: Tokenizer, text: TextOrIds, edits: Edits | None = None) -> Page:
    """Show what the model would predict after each block (the logit lens, nostalgebraist 2020)."""
    idx = one_text(model, text, tokenizer, 1, "gpt.show.lens")
    view = lens_view(model, tokenizer, idx, edits=edits)
    return Page("lens", "Logit lens", "", view)


def picture(model: GPT, tokenizer: Tokenizer, text: TextOrIds, edits: Edits | None = None) -> Page:
    """Show the whole model as one picture, with the numbers of each part for any token of a text.

    Edits of the residual stream itself are refused.
    """
    idx = one_text(model, text, tokenizer, 1, "gpt.show.picture")
    view = picture_view(model, tokenizer, idx, edits)
    return Page("picture", "The model as one picture", "", view)


def parameters(model: GPT) -> Table:
    """Show the parameters of each component of a model."""
    return component_table(count_parameters(model.config), model.config.n_layer)
