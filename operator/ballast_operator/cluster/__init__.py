"""The Kubernetes API's client: nothing else in the operator talks to it, except kopf's watches."""
