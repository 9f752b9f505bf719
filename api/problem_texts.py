"""Every text of the gateway's problems: what went wrong, in a sentence, and what to do next where there is something.

Names in braces are filled in by `problems.py`. The types are public API; the texts are for people and may change.
"""

from typing import Literal

ProblemName = Literal[
    "malformed-request",
    "unauthenticated",
    "forbidden",
    "foreign-host",
    "foreign-origin",
    "proxied",
    "unknown-session",
    "unknown-task",
    "unknown-prompt",
    "unknown-turn",
    "unknown-call",
    "unknown-blob",
    "not-found",
    "method-not-allowed",
    "session-exists",
    "session-ended",
    "no-longer-retained",
    "state-full",
    "not-waiting",
    "not-running",
    "not-failed",
    "not-awaiting-approval",
    "other-arguments",
    "idempotency-key-reused",
    "request-timeout",
    "too-large",
    "head-too-large",
    "too-many-connections",
    "invalid",
    "queue-full",
    "rate-limited",
    "temporal-unreachable",
    "archive-unavailable",
    "issuer-unavailable",
    "deletion-refused",
    "stopping",
    "no-worker",
    "session-stuck",
    "internal",
]

TITLES: dict[ProblemName, str] = {
    "malformed-request": "Malformed request",
    "unauthenticated": "Key needed",
    "forbidden": "Not allowed",
    "foreign-host": "Unknown host",
    "foreign-origin": "Request from another site",
    "proxied": "Request through a proxy",
    "unknown-session": "Session not found",
    "unknown-task": "Task not found",
    "unknown-prompt": "Prompt not found",
    "unknown-turn": "Turn not found",
    "unknown-call": "Tool call not found",
    "unknown-blob": "Text not found",
    "not-found": "Not found",
    "method-not-allowed": "Method not allowed",
    "session-exists": "Session id already used",
    "session-ended": "Session ended",
    "no-longer-retained": "Session no longer retained",
    "state-full": "Session full",
    "not-waiting": "Prompt no longer queued",
    "not-running": "No turn is running",
    "not-failed": "Turn did not fail",
    "not-awaiting-approval": "No approval pending",
    "other-arguments": "Arguments have changed",
    "idempotency-key-reused": "Key already used",
    "request-timeout": "Request timed out",
    "too-large": "Request too large",
    "head-too-large": "Request headers too large",
    "too-many-connections": "Too many connections",
    "invalid": "Invalid request",
    "queue-full": "Queue full",
    "rate-limited": "Too many requests",
    "temporal-unreachable": "Temporal unreachable",
    "archive-unavailable": "Archive unavailable",
    "issuer-unavailable": "Issuer unavailable",
    "deletion-refused": "Deletion not permitted",
    "stopping": "Gateway stopping",
    "no-worker": "No worker",
    "session-stuck": "Session stuck",
    "internal": "Internal error",
}

MEANINGS: dict[ProblemName, tuple[int, str]] = {
    "unauthenticated": (401, "the request has no key or token, or one that is not valid"),
    "forbidden": (403, "the caller's role may not do this; the text names the role that may"),
    "foreign-host": (403, "the `Host` is not one of the gateway's names"),
    "foreign-origin": (403, "a web page of another site sent the request"),
    "proxied": (403, "the request came through a proxy, and the gateway asks nobody for a key"),
    "unknown-session": (404, "there is no such session"),
    "unknown-task": (404, "there is no such task"),
    "unknown-prompt": (404, "the session never had this prompt"),
    "unknown-turn": (404, "the session has no such turn"),
    "unknown-call": (404, "the session has no such tool call"),
    "unknown-blob": (404, "the session has no such text"),
    "session-exists": (409, "the id was used before"),
    "session-ended": (409, "the session has ended, or is ending"),
    "no-longer-retained": (410, "the session has ended, and its turns are neither in Temporal nor in the archive"),
    "state-full": (409, "the session is full"),
    "not-waiting": (409, "the prompt is no longer in the queue"),
    "not-running": (409, "no turn is running"),
    "not-failed": (409, "the turn did not fail"),
    "not-awaiting-approval": (409, "the call no longer waits for a decision"),
    "other-arguments": (409, "the call has other arguments than those that were decided on"),
    "idempotency-key-reused": (409, "the key was used for another task"),
    "too-large": (413, "the body is over 1 MiB, or over 10 MiB where a history or attachments are sent"),
    "invalid": (422, "a parameter or field is invalid; `errors` names each"),
    "queue-full": (429, "the session's queue is full; see `Retry-After`"),
    "rate-limited": (429, "too many requests right now; see `Retry-After`"),
    "temporal-unreachable": (503, "Temporal can't be reached"),
    "archive-unavailable": (503, "the archive can't be reached, and only the archive has the answer"),
    "issuer-unavailable": (503, "the keys of the tokens' issuer can't be read"),
    "deletion-refused": (503, "Temporal doesn't allow workers to delete workflows"),
    "stopping": (503, "this gateway is stopping"),
    "no-worker": (504, "no worker answered; accepted prompts are safe"),
    "session-stuck": (504, "the session's workflow task keeps failing"),
}
"""Status and meaning, as the OpenAPI document says them; `too-large` has its limits from `http/body_limits.py`."""

# ---- requests

FOREIGN_HOST = (
    "This gateway does not answer to {host}. It answers to localhost, 127.0.0.1, [::1], api_host and the host of "
    "public_url; add other names to the setting allowed_hosts."
)
NAMED_HOST = "the host {host}"
NO_SINGLE_HOST = "a request without exactly one Host header"

FOREIGN_ORIGIN = (
    "{page} sent this request, and only the gateway's own page may. If people open the gateway at that address, set "
    "public_url to it."
)
PROXIED = (
    "This request came through a proxy: it has the header {header}. The gateway asks nobody for a key, so everyone at "
    "the other side of the proxy would be an admin. Set auth.keys=true and create keys with `turnkeeper keys create`, "
    "or set auth.oidc.issuer."
)
PAGE_OF_ORIGIN = "A web page of {origin}"
PAGE_OF_ANOTHER_SITE = "A web page of another site"

NO_CREDENTIAL = (
    "This gateway needs a key or a token: log in at its page, set TURNKEEPER_API_KEY, or send it as Authorization: "
    "Bearer."
)
BAD_CREDENTIAL = "This key or token is not valid: it is unknown, was revoked or has expired."
FORBIDDEN = "This needs the role {role}; your role is {own}."
FORBIDDEN_FIELD = "To set {field}, the role {role} is needed; your role is {own}."
MAY_NOT_SET = "may be set by the role {role} only"
UNLISTED_ROUTE = "{route} has no role, so nobody may use it. This is a bug of the gateway."
ISSUER_UNAVAILABLE = "The keys of the tokens' issuer can't be read now. Try again."

MALFORMED = "This is not a valid HTTP request."
REQUEST_TIMEOUT = "The rest of the request did not arrive in time."
HEAD_TOO_LARGE = "The request's headers are over the limit of {limit:,} bytes."
TOO_LARGE = "The request's body is over the limit of {mib} MiB."
TOO_MANY_CONNECTIONS = (
    "The gateway already has {limit:,} connections. Try again, or set api_max_connections to allow more."
)
METHOD_NOT_ALLOWED = "{path} doesn't support {method}. Supported: {allowed}."
NOTHING_THERE = "There is nothing at {path}."
OTHER_HTTP_ERROR = "{method} {path}: {phrase}."
INTERNAL = "Internal error. The gateway's log has the details."

NOT_JSON = "is not valid JSON"
NOT_SENT_AS_JSON = "must be sent with the Content-Type application/json"
UNKNOWN_PARAMETER = "is not a parameter of this route; allowed: {allowed}"
OTHER_FORMAT_ONLY = "is for format={format} only"
NOT_A_CURSOR = "is not a cursor of this list"
NOT_AN_EVENT_ID = "is not an event id: <revision>.<last_seen_message_id>"
TWO_PROMPT_IDS = "differs from the Idempotency-Key header; send only one of them"
NOT_ACCEPTED = "is not accepted by Temporal"
REJECTED_BY_SESSION = "was rejected by the session"

# ---- sessions

UNKNOWN_SESSION = "There is no session {session_id!r}."
UNKNOWN_TASK = "There is no task {task_id!r}."
UNKNOWN_PROMPT = "The session has no prompt {message_id!r}."
UNKNOWN_TURN = "The session has no turn {turn_id!r}."
UNKNOWN_BLOB = "The session has no text {name!r}."
IDEMPOTENCY_KEY_REUSED = (
    "The idempotency_key {key!r} was used for another task. Send the same request again, or choose another key."
)
ID_WAS_USED = "The id {session_id!r} was used before. Choose another."
ID_IS_BEING_DELETED = (
    "The session {session_id!r} is being deleted, which takes up to a minute. Send the request again then, or choose "
    "another id."
)
IMPORTS_BUSY = "Other documents are being imported. Try again in a moment."
COPY_LOST_TURNS = "Turns of the copy were deleted while it was made. Send the request again."
COPY_UNFINISHED = (
    "Another copy was begun under the id {session_id!r} and not finished. Repeat it, delete the session, or choose "
    "another id."
)
NO_LONGER_RETAINED = "Session {session_id!r} has ended, and its turns are no longer retained."
SESSION_ENDED = "Session {session_id!r} has ended. It can still be read."
SESSION_ENDING = "The session is ending and takes no more prompts."
SESSION_FULL = "The session accepts no prompts now."
QUEUE_FULL = "{length} prompts are waiting already. Send this one when some of them have run."
HISTORY_FULL = "No worker has processed the last prompts of this session. They are safe; send this one later."
SESSION_STUCK = (
    "Session {session_id!r} is stuck: its workflow task keeps failing. Nothing is lost; it continues after a fix."
)
NO_WORKER = (
    "No worker answered for session {session_id!r}. Accepted prompts are safe and run as soon as a worker is back."
)
NO_PROMPT_WITHOUT_ARCHIVE = "The archive can't be reached, so no key can be verified and no change recorded."
TEMPORAL_UNREACHABLE = "Temporal can't be reached. Only confirmed changes were made; try again."
TEMPORAL_RATE_LIMIT = "Temporal is limiting requests. Try again in a moment."
STOPPING = "This gateway is stopping. Connect again."
CUT_SHORT = "This gateway is stopping and could not finish the request, which may or may not have been done. Try again."
OVER_LIMIT = {
    "rate_limit": "The limit rate_limit is {limit} requests a second. Try again in {seconds} s.",
    "prompt_rate_limit": "The limit prompt_rate_limit is {limit} prompts a minute in one session. Try again in "
    "{seconds} s.",
    "max_streams_per_key": "The limit max_streams_per_key is {limit} streams and waiting requests at once. Close one, "
    "or try again in {seconds} s.",
    "max_open_sessions": "The limit max_open_sessions is {limit} open sessions. End one, or try again in {seconds} s.",
}
"""By the name of the setting."""

# ---- prompts and turns

QUEUE_CLOSED = "The session was closed before the prompt was processed."
PROMPT_REJECTED = "The prompt was rejected."
NOT_WAITING = "Prompt {message_id!r} was {fate}. Send it with a new id."
NOT_RUNNING = "No turn is running."
NOT_FAILED = "Turn {turn_id!r} did not fail."
NO_FAILED_TURN = "The session has no failed turn."
NO_COMPLETED_TURN = "the session has no completed turn"
TURN_IS_RUNNING = "has not ended yet"

# ---- archive and deletion

STORE_TIMEOUT = "The store did not answer in time."
ARCHIVE_INCOMPLETE = "The archive lacks turns that the session has moved to it."
ARCHIVE_DOWN = "{reason} Nothing is lost; the session itself continues."
AUDIT_DOWN = "{reason} The audit can't record the change, so nothing was done. Try again."
LOGIN_NOT_ENDED = "{reason} This browser is logged out, but a copy of its cookie stays valid until the login expires."
ATTACHMENTS_NOT_STORED = "{reason} The attachments can't be stored, so nothing was sent. Try again."
LONG_ATTACHMENTS = "names and addresses are too long: without contents, {limit:,} bytes of JSON are allowed"
UNKNOWN_UPLOAD = "no content with this hash was uploaded to this session"
NO_FORM = "must be the content's own type: the body is the content, not a form with it"
UNNAMED_FILE = "file"
ONLY_DATA_URLS = "must be a data: URL in base64; only images may be at an http or https address"
CONTENT_TOO_LARGE = "An attachment may have at most {limit:,} bytes."
NOTHING_DELETED = "{reason} Nothing was deleted. Try again."
DELETION_WAITS = (
    "{reason} The session is stopped but not deleted yet. The deletion finishes when the archive is back; ask again."
)
DELETION_NOT_PERMITTED = (
    "{reason} The deletion continues once workers may terminate and delete workflows in this namespace."
)

# ---- page

NO_WEB_UI = "This gateway serves no Temporal Web UI."
RENDERER_BUSY = "Too many texts are being rendered. Try again in a moment."

# ---- AI SDK

SILENT_WORKER_NOTICE = "Your message is safe. It is answered as soon as a worker is available."
DECISION_AWAITED_NOTICE = "An earlier message needs a decision on a tool call first. Then this one is answered."
DECISION_UNUSED_NOTICE = "A tool call was already decided otherwise, or has expired: your decision on it has no effect."
ANSWER_RESTARTED = "The answer is being written again. The turn continues: resume the stream to see it."
SESSION_CLOSED = "The session is {status}; this turn has no answer."
STREAM_BROKEN = "The connection ended before the turn did. The turn continues: resume the stream to see the rest."
OTHER_APPROVAL_ID = "is not the id of the call's approval request"
NO_DECISION = "must be true or false"
NO_EDITING = "earlier messages can't be edited; send the text as a new message"
NOT_USER = "must be user, to answer a message again"
NOTHING_DECIDED = "has no tool call in state approval-responded, so there is nothing to decide"
OTHER_ANSWER_ID = "is not the id of an answer from this server"
NOT_NEWEST = "Only the newest message of a chat can be answered again."
ALREADY_ANSWERED = "The message has an answer. Only messages that failed or were stopped can be answered again."
