"""`ballast chat`: talk to any OpenAI endpoint from a terminal."""
