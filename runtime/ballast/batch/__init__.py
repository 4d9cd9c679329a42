"""`ballast batch`: a file of requests in, a file of replies out, in OpenAI's batch format."""
