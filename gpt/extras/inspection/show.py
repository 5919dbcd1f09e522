"""Show a model in a notebook: what it looks at, what it expects, and what it is made of.

    gpt.show.attention(model, tokenizer, "To be, or not to be")

The last value of a cell shows itself. Outside of a notebook, `save` writes a page that a browser opens.
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

    The first one shown is that of `layer` and `head`, counted from 0, or else the most telling one. For `edits` see
    `run_with_cache`.
    """
    idx = one_text(model, text, tokenizer, 1, "gpt.show.attention")
    view = {**attention_view(model, tokenizer, idx, edits), "layer": layer, "head": head}
    return Page("attention", "Attention", "", view)


def lens(model: GPT, tokenizer: Tokenizer, text: TextOrIds, edits: Edits | None = None) -> Page:
    """Show what the model would predict after each block (the logit lens, nostalgebraist 2020)."""
    idx = one_text(model, text, tokenizer, 1, "gpt.show.lens")
    return Page("lens", "Logit lens", "", lens_view(model, tokenizer, idx, edits=edits))


def picture(model: GPT, tokenizer: Tokenizer, text: TextOrIds, edits: Edits | None = None) -> Page:
    """Show the whole model as one picture, with the numbers of each part for any token of a text.

    Edits of the residual stream itself are refused.
    """
    idx = one_text(model, text, tokenizer, 1, "gpt.show.picture")
    return Page(
        "picture", "The model as one picture", "", picture_view(model, tokenizer, idx, edits)
    )


def parameters(model: GPT) -> Table:
    """Show the parameters of each component of a model."""
    return component_table(count_parameters(model.config), model.config.n_layer)
