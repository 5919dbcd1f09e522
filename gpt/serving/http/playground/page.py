"""The document at `/`, which has everything inside and asks nobody but this server."""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from gpt.web.document import PLAYGROUND, content_policy, render_document


def add_page(app: FastAPI, facts: dict[str, Any]) -> None:
    """Add `GET /`; `facts` are values that its script finds."""
    document = render_document(PLAYGROUND, facts, title="gpt")
    policy = f"{content_policy(PLAYGROUND)}; frame-ancestors 'none'"
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}

    async def show_page() -> HTMLResponse:
        return HTMLResponse(document, headers=headers)

    app.add_api_route("/", show_page, include_in_schema=False)
