"""The settings that kopf runs with."""

from ballast_operator.process.handlers import make_settings


def test_kopf_cannot_kill_the_process():
    assert make_settings().process.ultimate_exiting_timeout is None
