"""What the model sees of a conversation: pure rules, the same on every machine (CTX-1 to CTX-16).

The transcript itself is never altered by any of it.
"""

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
    "ConversationHistoryConfig",
    "ConversationMetrics",
    "ConversationWindow",
    "TrimResult",
    "count_chars",
    "estimate_tokens",
    "eviction_config",
    "history_config",
    "kept_indexes",
    "message_groups",
]
