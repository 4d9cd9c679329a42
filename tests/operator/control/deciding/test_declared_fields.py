"""Which status fields the definition of an earlier release declares."""

from ballast_operator.control.deciding.declared_fields import declared_part, undeclared_fields

EARLIER = {
    "properties": {
        "url": {"type": "string"},
        "effective": {"properties": {"tokens": {"type": "integer"}}},
        "places": {"items": {"properties": {"name": {"type": "string"}}}},
        "labels": {"additionalProperties": {"type": "string"}},
    }
}
LATER = {
    "properties": {
        **EARLIER["properties"],
        "device": {"properties": {"used": {"type": "string"}}},
        "effective": {"properties": {"tokens": {"type": "integer"}, "memory": {"type": "string"}}},
        "places": {"items": {"properties": {"name": {"type": "string"}, "used": {"type": "string"}}}},
    }
}
STATUS = {
    "url": "http://s",
    "device": {"used": "cpu"},
    "effective": {"tokens": 1, "memory": "1Mi"},
    "places": [{"name": "n1", "used": "1Gi"}],
    "labels": {"any": "key"},
}


def test_only_declared_fields_are_kept_at_every_depth():
    assert declared_part(STATUS, EARLIER) == {
        "url": "http://s",
        "effective": {"tokens": 1},
        "places": [{"name": "n1"}],
        "labels": {"any": "key"},
    }
    assert declared_part(STATUS, LATER) == STATUS
    assert declared_part(STATUS, {}) == STATUS


def test_undeclared_fields_are_reported_by_path():
    assert list(undeclared_fields(LATER, EARLIER)) == ["effective.memory", "places[].used", "device"]
    assert list(undeclared_fields(EARLIER, LATER)) == []
