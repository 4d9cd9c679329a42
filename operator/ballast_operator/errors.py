"""Errors that a command ends with, each a sentence that says what to do."""


class InputError(Exception):
    """What was given cannot be used."""


class ConnectError(Exception):
    """No usable credentials for the API server; the message says where they were looked for."""
