"""The same verbs for the AI SDK's `useChat`."""
