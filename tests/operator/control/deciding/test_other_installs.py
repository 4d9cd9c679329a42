from ballast_operator.control.deciding.other_installs import other_installs, rivalry, status_managers
from ballast_operator.names import Ref

OWN, OTHER = Ref("a", "ballast-operator"), Ref("b", "ballast-operator")


def written(*managers, subresource="status", operation="Apply"):
    entries = [{"manager": name, "operation": operation, "subresource": subresource} for name in managers]
    return {"metadata": {"managedFields": entries}}


def test_other_installs_are_recognised_by_their_field_managers():
    body = written(str(OWN), str(OTHER), "kubectl", "ballast-operator", "Bad/Name", "a/b/c")
    assert other_installs(body, OWN) == ([OTHER], ["ballast-operator"])
    assert other_installs(written(str(OWN)), OWN) == ([], [])
    assert other_installs({"metadata": {}}, OWN) == ([], [])


def test_other_subresources_and_operations_do_not_count():
    assert status_managers(written(str(OTHER), subresource="")) == frozenset()
    assert status_managers(written(str(OTHER), operation="Update")) == frozenset()


def test_the_older_lease_wins_for_both_installs_with_the_same_message():
    created = {OWN: "2026-01-02T00:00:00Z", OTHER: "2026-01-01T00:00:00Z"}
    mine, theirs = rivalry(OWN, created, []), rivalry(OTHER, created, [])
    assert (mine.acts, theirs.acts) == (False, True)
    assert mine.message == theirs.message
    assert "only b/ballast-operator, the oldest, acts" in str(mine.message)
    same = dict.fromkeys(created, "2026-01-01T00:00:00Z")
    assert (rivalry(OWN, same, []).acts, rivalry(OTHER, same, []).acts) == (True, False)


def test_a_single_install_acts_and_takes_over_from_former_ones():
    found = rivalry(OWN, {OWN: "2026-01-01T00:00:00Z"}, [str(OTHER)])
    assert (found.acts, found.message, found.gone) == (True, None, (str(OTHER),))
