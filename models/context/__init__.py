"""What the model sees of a conversation: pure rules, the same on every machine (CTX-1 to CTX-16).

The transcript itself is never altered by any of it.
"""

from models.context.replay import (
    CallEvent,
    MalformedReplay,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    ThinkEvent,
    UserEvent,
    parse_replay,
    render_replay,
    replay_events,
)
from models.context.tokens import count_chars, estimate_tokens
from models.context.window import (
    ConversationHistoryConfig,
    ConversationMetrics,
    ConversationWindow,
    TrimResult,
    eviction_config,
    history_config,
    kept_indexes,
    message_groups,
)

__all__ = [
    "CallEvent",
    "ConversationHistoryConfig",
    "ConversationMetrics",
    "ConversationWindow",
    "MalformedReplay",
    "ReplayEvent",
    "RespondEvent",
    "ResultEvent",
    "ThinkEvent",
    "TrimResult",
    "UserEvent",
    "count_chars",
    "estimate_tokens",
    "eviction_config",
    "history_config",
    "kept_indexes",
    "message_groups",
    "parse_replay",
    "render_replay",
    "replay_events",
]
