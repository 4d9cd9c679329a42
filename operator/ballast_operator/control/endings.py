"""What an exit code of the runtime means: its contract, in the words of conditions. Pure."""

from __future__ import annotations

import signal

from ballast_operator.control.pods import Ending

REASONS = {2: "ConfigInvalid", 3: "ModelUnusable", 4: "OutOfMemory", 70: "EngineFault"}
MEANINGS = {
    "ConfigInvalid": "a setting cannot work",
    "ModelUnusable": "the model cannot be served",
    "OutOfMemory": "there is not enough memory; raise resources.memory or lower cacheLens",
    "EngineFault": "the engine stopped on a fault of its own",
    "EngineStopped": "the engine ended by itself",
    "EngineKilled": "the engine was killed",
    "EngineCrashed": "the engine crashed",
    "EngineExited": "the engine ended",
}


def explain(ending: Ending) -> tuple[str, str]:
    """Reason and message for the end of an engine."""
    reason = _reason(ending)
    how = f"exit code {ending.exit_code}"
    if ending.exit_code > 128 and (name := _signal_name(ending.exit_code - 128)):
        how = f"{how}, {name}"
    return reason, f"{MEANINGS[reason]} ({how})" + (f": {_last_line(ending.message)}" if ending.message.strip() else "")


def _reason(ending: Ending) -> str:
    if ending.reason == "OOMKilled":
        return "OutOfMemory"
    if ending.exit_code in REASONS:
        return REASONS[ending.exit_code]
    if ending.exit_code == 0:
        return "EngineStopped"
    if ending.exit_code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
        return "EngineKilled"
    return "EngineCrashed" if ending.exit_code > 128 else "EngineExited"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _last_line(message: str) -> str:
    return message.strip().splitlines()[-1][:2000]
