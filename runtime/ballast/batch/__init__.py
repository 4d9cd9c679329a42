"""`ballast batch`: answers a file of requests in OpenAI's batch format, and writes a file of replies."""
