"""Tools as TypeScript, byte for byte as the published tokenizer of Kimi K2.5 declares them."""

from typing import Any

import pytest

from ballast.text.chat_template import ChatTemplate
from ballast.text.typescript_tools import typescript_of, with_sorted_keys


def declared(parameters: dict[str, Any], **more: Any) -> str:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters, **more}}]
    text = typescript_of(with_sorted_keys(tools))
    assert text.startswith("# Tools\n\n## functions\nnamespace functions {\n")
    assert text.endswith("\n}\n")
    return text.removeprefix("# Tools\n\n## functions\nnamespace functions {\n").removesuffix("\n}\n")


def fields(text: str) -> str:
    return text.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


def test_required_fields_come_first_and_each_half_is_sorted() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["°C", "K"], "default": "°C"},
            "days": {"type": "integer", "minimum": 1, "maximum": 7, "description": "How many\n\ndays."},
            "city": {"type": "string"},
            "zone": {"type": ["integer", "null"]},
        },
        "required": ["zone", "city"],
    }
    assert declared(parameters, description="The weather.\nOf a place.") == (
        "// The weather.\n// Of a place.\ntype f = (_: {\n"
        "  city: string,\n"
        "  zone: number | null,\n"
        "  // How many\n\n  // days.\n  // maximum: 7, minimum: 1\n  days?: number,\n"
        '  // Default: "°C"\n  unit?: "°C" | "K"\n'
        "}) => any;"
    )


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, "  a?: any"),
        (False, "  a?: null"),
        ({}, "  a?: any"),
        ({"type": "array"}, "  a?: Array<any>"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, "  // minItems: 1\n  a?: Array<number>"),
        (
            {"type": "array", "items": {"type": "string", "description": "D"}},
            "  a?: Array<\n    // D\n    string\n  >",
        ),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "null"}}]}, "  a?: string | Array<null>"),
        ({"enum": [1, None, "x", True]}, '  a?: 1 | None | "x" | True'),
        ({"type": "object", "properties": {"b": {"type": "boolean"}}}, "  a?: {\n    b?: boolean\n  }"),
        ({"type": "object"}, "  a?: {}"),
        ({"type": "object", "additionalProperties": False}, "  a?: {\n    [k: string]: never\n  }"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "  a?: {\n    [k: string]: number\n  }"),
        ({"type": "number", "default": True}, "  // Default: True\n  a?: number"),
        ({"type": "string", "default": ["é"], "pattern": "^x"}, '  // pattern: ^x\n  // Default: ["é"]\n  a?: string'),
    ],
)
def test_types(schema: Any, expected: str) -> None:
    assert fields(declared({"type": "object", "properties": {"a": schema}})) == expected


def test_named_schemas_are_interfaces() -> None:
    node = {"type": "object", "description": "A node.", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    parameters = {"type": "object", "$defs": {"Node": node}, "properties": {"head": {"$ref": "#/$defs/Node"}}}
    assert declared(parameters) == (
        "// A node.\ninterface Node {\n  next?: Node\n}\ntype f = (_: {\n  head?: Node\n}) => any;"
    )


def test_parameters_that_hold_themselves_are_an_interface() -> None:
    parameters = {
        "type": "object",
        "properties": {"z": {"type": "string"}, "b": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["z"],
    }
    assert declared(parameters) == (
        "interface parameters {\n  b?: Array<parameters>,\n  z: string\n}\ntype f = (_: parameters) => any;"
    )


def test_a_function_without_parameters() -> None:
    assert declared({}) == "type f = (_: {}) => any;"


@pytest.mark.parametrize(
    "schema",
    [
        {"description": "no type"},
        {"oneOf": [{"type": "string"}]},
        {"$ref": "#/$defs/Missing"},
        {"$ref": "http://example.com"},
        {"type": ["text"]},
        {"type": "string", "enum": [1]},
        {"type": "object", "additionalProperties": 1},
        {"type": "array", "items": 5},
        7,
    ],
)
def test_schemas_without_a_form_are_declared_as_json(schema: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": schema}}}}]
    with pytest.raises(ValueError, match=r".+"):
        typescript_of(tools)
    assert KIMI.render([{"role": "user", "content": "U"}], tools=tools).startswith('[{"function": {"name": "f", ')


def test_a_schema_without_end_is_declared_as_json() -> None:
    endless: dict[str, Any] = {"type": "array"}
    endless["items"] = endless
    with pytest.raises(ValueError, match="another type"):
        typescript_of([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": endless}}}}])


KIMI = ChatTemplate(
    "{%- if tools_ts_str %}{{ tools_ts_str }}{% else %}{{ tools | tojson }}{% endif %}", bos_token="", eos_token=""
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def test_a_template_that_asks_for_typescript_gets_it() -> None:
    chat = [{"role": "user", "content": "U"}]
    assert KIMI.render(chat, tools=TOOLS) == typescript_of(TOOLS)
    assert KIMI.render(chat, tools=TOOLS, options={"tools_ts_str": "own"}) == "own"
    assert KIMI.render(chat) == "null"


def test_client_text_in_a_schema_is_protected() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}]

    def protect(value: Any) -> Any:
        return value.replace("<|im_end|>", "!") if isinstance(value, str) else value

    assert "// !\n" in KIMI.render([{"role": "user", "content": "U"}], tools=tools, protect=protect)
