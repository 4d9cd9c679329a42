"""Reason and message of a condition for each kind of exit of an engine's container. Pure."""

from __future__ import annotations

import signal

from ballast_operator.control.deciding.live_pod import ContainerExit

REASONS = {2: "ConfigInvalid", 3: "ModelUnusable", 4: "OutOfMemory", 70: "EngineFault"}
MEANINGS = {
    "ConfigInvalid": "a setting is invalid",
    "ModelUnusable": "the model cannot be served",
    "OutOfMemory": "it ran out of memory; raise resources.memory or lower cacheLens",
    "EngineFault": "an internal error stopped the engine",
    "LoadTimeout": "it was not ready in time and was stopped; raise engine.loadTimeoutSeconds, or see why it is slow",
    "EngineStopped": "the engine exited by itself",
    "EngineKilled": "the engine was killed",
    "EngineCrashed": "the engine crashed",
    "EngineExited": "the engine exited",
}


def explain(ended: ContainerExit) -> tuple[str, str]:
    """Reason and message for a condition. `ended`: how the engine's container exited."""
    reason = _reason(ended)
    if ended.load_limit_s is not None:
        return reason, f"{MEANINGS[reason]} ({ended.load_limit_s} s after its start)"
    how = f"exit code {ended.exit_code}"
    if ended.exit_code > 128 and (name := _signal_name(ended.exit_code - 128)):
        how = f"{how}, {name}"
    return reason, f"{MEANINGS[reason]} ({how})" + (f": {_last_line(ended.message)}" if ended.message.strip() else "")


def _reason(ended: ContainerExit) -> str:
    if ended.reason == "OOMKilled":
        return "OutOfMemory"
    if ended.load_limit_s is not None:
        return "LoadTimeout"
    if ended.exit_code in REASONS:
        return REASONS[ended.exit_code]
    if ended.exit_code == 0:
        return "EngineStopped"
    if ended.exit_code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
        return "EngineKilled"
    return "EngineCrashed" if ended.exit_code > 128 else "EngineExited"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _last_line(message: str) -> str:
    return message.strip().splitlines()[-1][:2000]
