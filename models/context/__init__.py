"""What the model sees of a conversation: pure rules (CTX-1 to CTX-14). They never change the transcript."""

from turnkeeper.models.context.window import (
    ConversationHistoryConfig,
    ConversationMetrics,
    ConversationWindow,
    TrimResult,
    eviction_config,
    history_config,
    kept_indexes,
    message_groups,
)
from turnkeeper.models.errors import TaskValidationError
from turnkeeper.models.replay_text.grammar import (
    CallEvent,
    MalformedReplayTextError,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    ThinkEvent,
    UserEvent,
    parse_replay,
    render_replay,
)
from turnkeeper.models.replay_text.turn_events import replay_events
from turnkeeper.models.tasks.enrichment import first_prompt, format_task_enrichment_prompt, history_that_fits
from turnkeeper.models.tasks.hand_off import HandedOver, TaskValidationWarning, validate_conversation_history
from turnkeeper.models.tasks.history_policy import (
    KEEP_ASSISTANT,
    KEEP_USER,
    PRESETS,
    HistoryPolicy,
    TextLimit,
    resolve_policy,
)
from turnkeeper.models.tasks.stored_history import ConversationHistory, HistoryMessage, HistoryMetadata
from turnkeeper.models.tasks.task_context import Priority, TaskContext
from turnkeeper.models.tokens import count_chars, estimate_tokens

__all__ = [
    "KEEP_ASSISTANT",
    "KEEP_USER",
    "PRESETS",
    "CallEvent",
    "ConversationHistory",
    "ConversationHistoryConfig",
    "ConversationMetrics",
    "ConversationWindow",
    "HandedOver",
    "HistoryMessage",
    "HistoryMetadata",
    "HistoryPolicy",
    "MalformedReplayTextError",
    "Priority",
    "ReplayEvent",
    "RespondEvent",
    "ResultEvent",
    "TaskContext",
    "TaskValidationError",
    "TaskValidationWarning",
    "TextLimit",
    "ThinkEvent",
    "TrimResult",
    "UserEvent",
    "count_chars",
    "estimate_tokens",
    "eviction_config",
    "first_prompt",
    "format_task_enrichment_prompt",
    "history_config",
    "history_that_fits",
    "kept_indexes",
    "message_groups",
    "parse_replay",
    "render_replay",
    "replay_events",
    "resolve_policy",
    "validate_conversation_history",
]
