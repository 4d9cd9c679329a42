"""Applies a chat template from a request."""

from __future__ import annotations

from dataclasses import replace

from ballast.errors import ModelError
from ballast.text.chat_template import ChatTemplate
from ballast.text.loading import Text
from ballast.wire.parsing import refuse

FIELD = "chat_template"


def text_with_template(text: Text, source: str | None, *, is_trusted: bool) -> Text:
    """`text` with the template of a request instead of the model's own. Raises RequestError for an invalid template,
    and for any template if requests are not trusted with one, as in vLLM."""
    if source is None or (text.template is not None and source == text.template.source):
        return text
    if not is_trusted:
        refuse(FIELD, "requests may not bring a template; omit it, or start with --trust_request_chat_template")
    tokenizer = text.tokenizer

    def spelled(token_id: int | None) -> str:
        return "" if token_id is None else tokenizer.token_bytes(token_id).decode(errors="replace")

    try:
        template = ChatTemplate(
            source,
            bos_token=spelled(tokenizer.bos_id),
            eos_token=spelled(tokenizer.eos_id),
            name=FIELD,
            numbers_calls=tokenizer.reply.numbers_calls,
            has_channels=tokenizer.reply.has_channels,
            today=None if text.template is None else text.template.today,
        )
    except ModelError as error:
        refuse(FIELD, str(error))
    return replace(text, template=template, template_source=FIELD)
