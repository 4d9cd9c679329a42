"""Errors that end a command. Each message is a sentence that says what to do."""


class InputError(Exception):
    """A file or an option that cannot be used."""


class ConnectError(Exception):
    """No usable credentials for the API server; the message says where they were looked for."""
