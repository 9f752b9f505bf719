"""What copies add to the gateway: routes to export, import and fork sessions."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from turnkeeper.api.bodies import Fork, session_path
from turnkeeper.api.changes import Starts
from turnkeeper.api.dependencies import ChangesDep, ServicesDep, SessionId
from turnkeeper.api.http.openapi import SESSION, WORKER, errors
from turnkeeper.api.problems import invalid
from turnkeeper.api.roles import access
from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.features.copies.copying import SessionCopier
from turnkeeper.features.copies.document.document import FORMAT, VERSION
from turnkeeper.features.copies.exporting import SessionExporter
from turnkeeper.models.http_responses import CopyReceipt
from turnkeeper.models.ids import ID_PATTERN, session_id_of

router = APIRouter(tags=["sessions"])

_DOCUMENT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "title": "SessionDocument",
                    "description": "An exported session; `docs/export.schema.json` has the whole schema.",
                    "required": ["format", "version", "exported_at", "session", "turns"],
                    "properties": {
                        "format": {"type": "string", "const": FORMAT},
                        "version": {"type": "integer", "const": VERSION},
                    },
                }
            }
        },
    }
}


@router.get(
    "/workflow/{id}/export",
    operation_id="export_session",
    response_class=Response,
    responses={
        200: {
            "description": "The document; with `format=markdown` a text for people.",
            "content": {
                "application/json": {"schema": _DOCUMENT["requestBody"]["content"]["application/json"]["schema"]},
                "text/markdown": {"schema": {"type": "string"}},
            },
        },
        **errors(*WORKER, "archive-unavailable"),
    },
)
@access("reader")
async def export_session(
    services: ServicesDep,
    changes: ChangesDep,
    workflow_id: SessionId,
    export_format: Annotated[
        Literal["json", "markdown"], Query(alias="format", description="`json` can be imported.")
    ] = "json",
) -> Response:
    """Return the whole session as of its last completed turn: one document, which any later version imports.

    Waiting prompts and the vendors' opaque state are not in it.
    """
    exporter = services.get(SessionExporter)
    async with changes.begin("export", workflow_id):
        if export_format == "markdown":
            parts, media_type, suffix = await exporter.markdown(workflow_id), "text/markdown", "md"
        else:
            parts, media_type, suffix = await exporter.document(workflow_id), "application/json", "json"
    name = f"{session_id_of(workflow_id)}.{suffix}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(parts, media_type=media_type, headers=headers)


@router.post(
    "/workflow/import",
    status_code=202,
    operation_id="import_session",
    responses=errors(*SESSION, "too-large", "session-exists", "archive-unavailable"),
    openapi_extra=_DOCUMENT,
)
@access("writer", max_body=lambda settings: settings.api_max_import_bytes)
async def import_session(
    request: Request,
    services: ServicesDep,
    changes: ChangesDep,
    response: Response,
    session_id: Annotated[
        str | None, Query(alias="id", pattern=ID_PATTERN, description="The new session's id; by default a random one.")
    ] = None,
) -> CopyReceipt:
    """Import an exported document: a session with the same transcript, and the same view of it for the model.

    All of the document is checked first; 422 says what is wrong, and then nothing is imported. Its `session.id` is
    ignored. `Location` names the receipt, which says when the session is there. 409 if the id was used before. After an
    answer that was lost, the same request can be sent again.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise invalid("body", "must be sent with the Content-Type application/json")
    workflow_id = changes.caller.workflow_id(session_id or str(uuid4()))
    response.headers["Location"] = f"{session_path(workflow_id)}/copy"
    async with changes.begin("import", workflow_id, starts="unless it exists" if session_id else "new"):
        return await services.get(SessionCopier).import_document(changes.caller, workflow_id, request.stream())


@router.post(
    "/workflow/{id}/fork",
    status_code=202,
    operation_id="fork_session",
    responses=errors(*WORKER, "too-large", "session-exists", "unknown-turn", "archive-unavailable"),
)
@access("writer")
async def fork_session(
    services: ServicesDep,
    changes: ChangesDep,
    response: Response,
    workflow_id: SessionId,
    body: Fork | None = None,
) -> CopyReceipt:
    """Fork the session: a new one with its turns up to a completed turn. The original stays as it is.

    The new session is the caller's. `Location` names the receipt, which says when the session is there. 409 if the new
    id was used before. After an answer that was lost, the same request can be sent again.
    """
    options = body or Fork()
    target = changes.caller.workflow_id(options.id or str(uuid4()))
    response.headers["Location"] = f"{session_path(target)}/copy"
    turn_id = options.turn if isinstance(options.turn, str) else None
    starts: Starts = "unless it exists" if options.id else "new"
    async with changes.begin("fork", workflow_id, message_id=turn_id), changes.begin("start", target, starts=starts):
        copier = services.get(SessionCopier)
        return await copier.fork(changes.caller, workflow_id, target, turn=options.turn, title=options.title)


@router.get("/workflow/{id}/copy", operation_id="get_copy", responses=errors(*SESSION))
@access("reader")
async def get_copy(services: ServicesDep, workflow_id: SessionId) -> CopyReceipt:
    """Return the receipt of the fork or import that the session is from; 404 if it is from none. Needs no worker."""
    return await services.get(SessionCopier).receipt(workflow_id)


class _Copies(GatewayFeature):
    routers = (router,)

    def services(self, services: Services) -> Iterable[object]:
        exporter = SessionExporter(services)
        yield exporter
        yield SessionCopier(services, exporter)


GATEWAY = _Copies()
