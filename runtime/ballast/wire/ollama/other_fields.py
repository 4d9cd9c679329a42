"""Fields of Ollama's API that have no effect here or are refused, and the fields of messages.

The fields are listed in Ollama's `api/types.go`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ballast.text.messages import ROLES
from ballast.wire.field_rules import Alias, NoEffect, Refused, Rule, shape
from ballast.wire.field_schemas import items

_AT_START = NoEffect("set when the server starts")
_ONLY_TEXT = Refused("this model reads only text", ([],))
_MIROSTAT = NoEffect("has an effect only with mirostat")
_NO_SAMPLER = "this sampling method is not implemented"

OPTION_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "use_mmap", "use_mlock"),
        _AT_START,
    ),
    **dict.fromkeys(("f16_kv", "logits_all", "vocab_only", "embedding_only", "num_gqa"), _AT_START),
    "num_keep": NoEffect("a request that fills the context ends; its beginning is not discarded"),
    "penalize_newline": NoEffect("penalties treat line breaks like any other token"),
    "mirostat": Refused(_NO_SAMPLER, (0,)),
    "mirostat_eta": _MIROSTAT,
    "mirostat_tau": _MIROSTAT,
    "tfs_z": Refused(_NO_SAMPLER, (1, 1.0)),
    "typical_p": Refused(_NO_SAMPLER, (1, 1.0)),
    "draft_num_predict": NoEffect("a setting for speculative decoding, which does not change the text"),
}

COMMON_RULES: Mapping[str, Rule] = {
    "keep_alive": NoEffect("the model stays loaded until the server stops"),
    "truncate": NoEffect("a prompt that is longer than the context is refused"),
    "shift": NoEffect("a request that fills the context ends; its beginning is not discarded"),
    "_debug_render_only": Refused("use /apply-template to see the prompt", (False,)),
}
GENERATE_RULES: Mapping[str, Rule] = {
    **COMMON_RULES,
    "images": _ONLY_TEXT,
    "template": Refused(
        "the model's chat template is used; send a formatted prompt with raw: true to use your own", ("",)
    ),
    "context": Refused("replies do not contain a context; send the conversation to /api/chat", ([],)),
    "width": Refused("this server does not generate images", (0,)),
    "height": Refused("this server does not generate images", (0,)),
    "steps": Refused("this server does not generate images", (0,)),
}
NAME_RULES: Mapping[str, Rule] = {
    "name": Alias("model"),
    "system": NoEffect("the reply describes the loaded model"),
    "template": NoEffect("the reply describes the loaded model"),
    "options": NoEffect("the reply describes the loaded model"),
}
PULL_RULES: Mapping[str, Rule] = {
    "name": Alias("model"),
    "insecure": NoEffect("this server does not download models"),
    "username": NoEffect("this server does not download models"),
    "password": NoEffect("this server does not download models"),
}

MESSAGE = shape(
    *("role", "content", "thinking", "tool_name", "tool_call_id"),
    rules={"images": _ONLY_TEXT, "name": Alias("tool_name")},
    tool_calls=shape(
        *("id", "type"),
        function=shape("name", "arguments", rules={"index": NoEffect("calls are read in the order of the list")}),
    ),
)

MESSAGE_ITEMS = items("role", rules=MESSAGE.rules, role={"enum": list(ROLES)})
