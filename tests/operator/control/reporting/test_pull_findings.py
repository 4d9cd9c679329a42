"""ModelPulled reports the result of the pull and how to fix a failure."""

import pytest
from builders import pod, seen, service

from ballast_operator.control.deciding.pull import Pull, Trouble
from ballast_operator.control.reporting.events import events_between
from ballast_operator.control.reporting.findings import find
from ballast_operator.control.reporting.pull_findings import FIXES, find_pull

SOURCE = {"huggingFace": {"repo": "org/tiny", "quant": "Q8_0", "pvc": {"claimName": "models"}}}
ONE = service(model={"source": SOURCE})


def found(pull):
    return find_pull(ONE.spec.model.source.pulled, "job-1", pull)


def test_each_step_is_reported():
    assert found(Pull()).reason == "PullStarting"
    assert found(Pull(running=True, progress=0.47)).message.endswith("to claim models, 40 % done")
    done = found(Pull(done=True, report="org/tiny:Q8_0 at 1234"))
    assert (done.status, done.reason) == ("True", "Pulled")
    assert "org/tiny:Q8_0 at 1234: on claim models" in done.message
    assert "org/tiny:Q8_0@main" in found(Pull(done=True)).message


@pytest.mark.parametrize("seen_reason", FIXES)
def test_every_pull_failure_has_a_fix_and_is_reported_as_a_failure(seen_reason):
    finding = found(Pull(trouble=Trouble(seen_reason, "said")))
    assert finding.is_fault
    assert FIXES[seen_reason] in finding.message
    assert "said" in finding.message


def test_an_unknown_reason_becomes_pull_failed():
    assert found(Pull(trouble=Trouble("Nonsense", "line"))).reason == "PullFailed"


def test_a_resumed_pull_reports_its_progress_and_the_earlier_failure():
    finding = found(Pull(running=True, progress=0.1, trouble=Trouble("HubUnreachable", "timeout")))
    assert not finding.is_fault
    assert "10 % done, after timeout" in finding.message


def test_ready_waits_for_the_pull_and_has_its_reason():
    going = find(ONE, seen(pulled=found(Pull(running=True))))
    assert list(going) == [
        *("Ready", "Available", "ModelPulled", "Scheduled", "ModelLoaded", "NUMAPinned", "EndpointReady", "Progressing")
    ]
    assert (going["Ready"].status, going["Ready"].reason) == ("False", "Pulling")
    assert (going["Progressing"].status, going["Progressing"].reason) == ("True", "Pulling")
    stuck = find(ONE, seen(pulled=found(Pull(trouble=Trouble("VolumeFull", "no room")))))
    assert (stuck["Ready"].reason, stuck["Progressing"].reason) == ("VolumeFull", "Blocked")
    serves = find(ONE, seen(pod(of=ONE), pulled=found(Pull(done=True))))
    assert serves["Ready"].holds
    assert "ModelPulled" not in find(service(), seen(pod()))


def test_events_report_its_end_and_its_troubles():
    def condition(pull):
        finding = found(pull)
        return [{"type": "ModelPulled", "status": finding.status, "reason": finding.reason, "message": finding.message}]

    starts, full, done = Pull(), Pull(trouble=Trouble("VolumeFull", "no room")), Pull(done=True)
    assert events_between([], condition(starts)) == []
    [event] = events_between(condition(starts), condition(full))
    assert (event.kind, event.reason) == ("Warning", "VolumeFull")
    [event] = events_between(condition(full), condition(done))
    assert (event.kind, event.reason) == ("Normal", "Pulled")
