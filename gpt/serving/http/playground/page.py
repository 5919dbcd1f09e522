"""The document at `/`, which has everything inside and asks nobody but this server, and what it says of a model."""

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from gpt.accounting.parameters import count_parameters
from gpt.config.filter_fields import with_filter_fields
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.serving.http.registry import Services
from gpt.web.document import PLAYGROUND, content_policy, render_document


def add_page(app: FastAPI, facts: dict[str, Any]) -> None:
    """Add `GET /`; `facts` are values that its script finds."""
    document = render_document(PLAYGROUND, facts, title="gpt")
    policy = f"{content_policy(PLAYGROUND)}; frame-ancestors 'none'"
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}

    async def show_page() -> HTMLResponse:
        return HTMLResponse(document, headers=headers)

    app.add_api_route("/", show_page, include_in_schema=False)


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
