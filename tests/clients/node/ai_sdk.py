"""The Vercel AI SDK with its four providers."""

import libraries


def check(folder):
    libraries.check(folder, "ai_sdk.mjs")
