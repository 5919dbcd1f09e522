"""The document at `/`, which has everything inside and asks nobody but this server, and what it says of a model."""

import base64
import hashlib
import json
from importlib import resources
from string import Template
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from gpt.accounting.parameters import count_parameters
from gpt.config.filter_fields import with_filter_fields
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.inspection.rendering.pages import (
    VIEW_SCRIPTS,
    VIEW_STYLES,
    VIEW_TEMPLATES,
    as_template,
    read_part,
    read_templates,
)
from gpt.serving.http.registry import Services

SHARED_STYLES = (*VIEW_STYLES, "controls.css", "shell.css", "write.css")
SHARED_SCRIPTS = (
    *("shared.js", "shell.js", "passage.js", "write.js", "reading_form.js"),
    *(*VIEW_SCRIPTS, "reading_views.js"),
)
SHARED_TEMPLATES = ("passage", "write", "reading_form", *VIEW_TEMPLATES)
"""What the exported page uses too, in `gpt/inspection/rendering/pages`."""
STYLES = ("playground.css", "charts.css", "runs.css")
SCRIPTS = (
    *("server_source.js", "write_view.js", "compare_view.js", "reading.js"),
    *("chart.js", "curves.js", "runs_view.js", "training_view.js"),
    "start.js",
)
"""In `static/`; views stand in the order of the navigation, and `start.js` comes last."""
TEMPLATES = ("runs", "training")


def add_page(app: FastAPI, facts: dict[str, Any]) -> None:
    """Add `GET /`, whose scripts find `facts` in `data`."""
    document, policy = build_page(facts)
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}

    async def show_page() -> HTMLResponse:
        return HTMLResponse(document, headers=headers)

    app.add_api_route("/", show_page, include_in_schema=False)


def build_page(facts: dict[str, Any]) -> tuple[str, str]:
    """Return the document, and the content security policy that allows its own script and style, and no other."""
    style = read_part(*SHARED_STYLES) + _read(*STYLES)
    script = read_part(*SHARED_SCRIPTS) + _read(*SCRIPTS)
    own = "".join(as_template(name, _read(f"{name}.html")) for name in TEMPLATES)
    document = Template(_read("page.html")).substitute(
        style=style, script=script, data=json.dumps(facts), templates=read_templates(*SHARED_TEMPLATES) + own
    )
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return document, policy


def _read(*names: str) -> str:
    return "".join(resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8") for name in names)


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


Kind = Literal["character", "byte", "token"]
KINDS: dict[type[Tokenizer], Kind] = {CharTokenizer: "character", ByteTokenizer: "byte"}


@with_filter_fields(after="temperature")
class SampleFacts(BaseModel):
    """How the model's configuration samples."""

    temperature: float


class ModelFacts(BaseModel):
    """What a model is."""

    model: str
    parameters: int
    n_layer: int
    n_head: int
    block_size: int = Field(description="Tokens that it sees at a time.")
    vocab_size: int
    token: Kind = Field(description="What a token is.")
    sample: SampleFacts


def add_model_info(app: FastAPI, services: Services) -> None:
    """Add `GET /api/models/{name}`: what a reader is told about a model, and what its form starts with."""

    async def describe(name: str) -> ModelFacts:
        """Describe a model, which is loaded for it."""
        services.responses.check()
        async with services.models.use(name) as served:
            loaded = served.loaded
            config, sample = loaded.model.config, loaded.config.sample
            return ModelFacts(
                model=name,
                parameters=count_parameters(config).total,
                n_layer=config.n_layer,
                n_head=config.n_head,
                block_size=config.block_size,
                vocab_size=loaded.tokenizer.vocab_size,
                token=KINDS.get(type(loaded.tokenizer), "token"),
                sample=SampleFacts.model_validate(sample, from_attributes=True),
            )

    app.add_api_route("/api/models/{name:path}", describe)
