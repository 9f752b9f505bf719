"""Markdown for the chat page, rendered and sanitised by the gateway (API-5)."""

from fastapi import APIRouter

from turnkeeper.api.bodies import RenderedMarkdown, RenderMarkdown
from turnkeeper.api.dependencies import ServicesDep
from turnkeeper.api.http.openapi import ANY, errors
from turnkeeper.api.roles import access

router = APIRouter(tags=["page"])


@router.post("/markdown", operation_id="render_markdown", responses=errors(*ANY, "too-large", "rate-limited"))
@access("reader")
async def render_markdown(services: ServicesDep, body: RenderMarkdown) -> RenderedMarkdown:
    """Return texts as safe HTML. A text that takes too long to render comes back preformatted.

    HTML in a text is escaped, images become links, and links lead to the web or to mail.
    """
    return RenderedMarkdown(html=await services.markdown.render(body.texts))
