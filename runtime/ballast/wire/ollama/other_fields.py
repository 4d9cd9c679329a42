"""Fields of Ollama's API that have no effect here or are refused, and what messages may hold.

Its list: `api/types.go` of Ollama.
"""

from __future__ import annotations

from collections.abc import Mapping

from ballast.text.messages import ROLES
from ballast.wire.field_rules import Alias, NoEffect, Refused, Rule, shape
from ballast.wire.field_schemas import items

_AT_START = NoEffect("decided when the server starts")
_ONLY_TEXT = Refused("this model reads only text", ([],))
_MIROSTAT = NoEffect("acts only with mirostat")
_NO_SAMPLER = "this server has no such way to choose tokens"

OPTION_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "use_mmap", "use_mlock"),
        _AT_START,
    ),
    **dict.fromkeys(("f16_kv", "logits_all", "vocab_only", "embedding_only", "num_gqa"), _AT_START),
    "num_keep": NoEffect("a request that fills the context ends; nothing of it is discarded"),
    "penalize_newline": NoEffect("penalties treat line breaks as any other token"),
    "mirostat": Refused(_NO_SAMPLER, (0,)),
    "mirostat_eta": _MIROSTAT,
    "mirostat_tau": _MIROSTAT,
    "tfs_z": Refused(_NO_SAMPLER, (1, 1.0)),
    "typical_p": Refused(_NO_SAMPLER, (1, 1.0)),
    "draft_num_predict": NoEffect("about speculative decoding, which leaves the text as it is"),
}

COMMON_RULES: Mapping[str, Rule] = {
    "keep_alive": NoEffect("the model stays loaded until the server stops"),
    "truncate": NoEffect("a prompt that is longer than the context is refused"),
    "shift": NoEffect("a request that fills the context ends; nothing of it is discarded"),
    "_debug_render_only": Refused("/apply-template shows the prompt", (False,)),
}
GENERATE_RULES: Mapping[str, Rule] = {
    **COMMON_RULES,
    "images": _ONLY_TEXT,
    "template": Refused("the chat template is the model's; use raw with a prompt of your own", ("",)),
    "context": Refused("replies have none; send the conversation to /api/chat", ([],)),
    "width": Refused("this server makes no images", (0,)),
    "height": Refused("this server makes no images", (0,)),
    "steps": Refused("this server makes no images", (0,)),
}
NAME_RULES: Mapping[str, Rule] = {
    "name": Alias("model"),
    "system": NoEffect("the reply shows the model as the server has it"),
    "template": NoEffect("the reply shows the model as the server has it"),
    "options": NoEffect("the reply shows the model as the server has it"),
}
PULL_RULES: Mapping[str, Rule] = {
    "name": Alias("model"),
    "insecure": NoEffect("nothing is fetched"),
    "username": NoEffect("nothing is fetched"),
    "password": NoEffect("nothing is fetched"),
}

MESSAGE = shape(
    *("role", "content", "thinking", "tool_name", "tool_call_id"),
    rules={"images": _ONLY_TEXT, "name": Alias("tool_name")},
    tool_calls=shape(
        *("id", "type"),
        function=shape("name", "arguments", rules={"index": NoEffect("calls are in the order of their list")}),
    ),
)

MESSAGE_ITEMS = items("role", rules=MESSAGE.rules, role={"enum": list(ROLES)})
