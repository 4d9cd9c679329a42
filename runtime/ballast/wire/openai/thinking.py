"""How a chat request asks a model to think, in the words of DeepSeek, OpenRouter and SGLang."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ballast.wire.parsing import WHOLE, StrictModel

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ThinkingSwitch(StrictModel):
    """`thinking` of DeepSeek's API, and of Anthropic's."""

    type: Literal["enabled", "disabled", "adaptive"]
    """adaptive: as the model and its template would have it."""
    budget_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    """As thinking_token_budget."""
    clear_thinking: bool | None = None
    """As chat_template_kwargs.clear_thinking; in templates of GLM, false keeps the reasoning of earlier turns."""

    @property
    def asks(self) -> bool | None:
        """Whether the model is to think; None: it does not say."""
        return None if self.type == "adaptive" else self.type == "enabled"


class ReasoningChoice(StrictModel):
    """`reasoning` of OpenRouter's API, which SGLang reads too."""

    effort: ReasoningEffort | None = None
    """As reasoning_effort."""
    enabled: bool | None = None
    exclude: bool | None = None
    """true: as include_reasoning: false."""
    max_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    """As thinking_token_budget."""
