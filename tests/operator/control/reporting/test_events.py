"""Which changes of conditions become events."""

import pytest

from ballast_operator.control.reporting.events import Event, events_between


def conditions(ready, pinned=("Unknown", "NotRunning")):
    found = {"Ready": ready, "NUMAPinned": pinned, "Scheduled": ("False", "NotTold")}
    return [
        {"type": name, "status": status, "reason": reason, "message": f"{reason}."}
        for name, (status, reason) in found.items()
    ]


SERVING = conditions(("True", "Serving"))
LOADING = conditions(("False", "Loading"))


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        ([], LOADING, []),
        (LOADING, conditions(("False", "NotReady")), []),
        (LOADING, conditions(("False", "ServiceUnreachable")), []),
        (LOADING, SERVING, [("Normal", "Serving")]),
        (SERVING, SERVING, []),
        (SERVING, conditions(("False", "PodMissing")), [("Normal", "PodMissing")]),
        (SERVING, conditions(("False", "EngineKilled")), [("Warning", "EngineKilled")]),
        ([], conditions(("False", "ForeignObject")), [("Warning", "ForeignObject")]),
        (conditions(("False", "ForeignObject")), conditions(("False", "ForeignObject")), []),
        (conditions(("False", "ConfigInvalid")), LOADING, []),
        (LOADING, conditions(("False", "ConfigInvalid")), [("Warning", "ConfigInvalid")]),
    ],
)
def test_ready_becomes_an_event_when_it_changes(before, after, reported):
    assert [(event.kind, event.reason) for event in events_between(before, after)] == reported


def test_pinning_is_an_event_of_its_own_unless_ready_requires_it():
    pinned = conditions(("True", "Serving"), ("True", "CPUsAndMemoryAligned"))
    assert events_between(LOADING, pinned) == [
        Event("Normal", "Serving", "Serving."),
        Event("Normal", "CPUsAndMemoryAligned", "CPUsAndMemoryAligned."),
    ]
    lost = ("False", "SharedCPUPool")
    assert events_between(pinned, conditions(("True", "Serving"), lost)) == [
        Event("Warning", "SharedCPUPool", "SharedCPUPool.")
    ]
    assert events_between(pinned, conditions(lost, lost)) == [Event("Warning", "SharedCPUPool", "SharedCPUPool.")]
    assert events_between(pinned, conditions(("False", "PodMissing"))) == [Event("Normal", "PodMissing", "PodMissing.")]
