"""The chat page: its pictures for the documentation, and its packages of others."""
