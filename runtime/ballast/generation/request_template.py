"""Applies a chat template from a request."""

from __future__ import annotations

from dataclasses import replace

from ballast.errors import ModelError
from ballast.text.loading import Text, template_for
from ballast.wire.parsing import refuse

FIELD = "chat_template"


def text_with_template(text: Text, source: str | None, *, is_trusted: bool) -> Text:
    """`text` with the template of a request instead of the model's own. Raises RequestError for an invalid template,
    and for any template if requests are not trusted with one, as in vLLM."""
    if source is None or (text.template is not None and source == text.template.source):
        return text
    if not is_trusted:
        refuse(FIELD, "requests may not bring a template; omit it, or start with --trust_request_chat_template")
    today = None if text.template is None else text.template.today
    try:
        template = template_for(text.tokenizer, source, FIELD, today=today)
    except ModelError as error:
        refuse(FIELD, str(error))
    return replace(text, template=template, template_source=FIELD)
