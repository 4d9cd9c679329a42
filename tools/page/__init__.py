"""The chat page: its pictures for the documentation, and its third-party packages."""
