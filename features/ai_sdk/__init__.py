"""The routes for the AI SDK's `useChat`."""
