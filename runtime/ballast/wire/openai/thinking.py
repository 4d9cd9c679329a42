"""How a chat request controls thinking, in the fields of DeepSeek, OpenRouter and SGLang."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ballast.wire.parsing import WHOLE, StrictModel

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ThinkingSwitch(StrictModel):
    """`thinking` of DeepSeek's and Anthropic's APIs."""

    type: Literal["enabled", "disabled", "adaptive"]
    """adaptive: the default of the model's template."""
    budget_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    """As thinking_token_budget."""
    clear_thinking: bool | None = None
    """Same as chat_template_kwargs.clear_thinking. In GLM's templates, false keeps the reasoning of earlier turns."""

    @property
    def enabled(self) -> bool | None:
        """Whether the model thinks; None: not specified."""
        return None if self.type == "adaptive" else self.type == "enabled"


class ReasoningChoice(StrictModel):
    """`reasoning` of OpenRouter's API, which SGLang also accepts."""

    effort: ReasoningEffort | None = None
    """As reasoning_effort."""
    enabled: bool | None = None
    exclude: bool | None = None
    """true: same as include_reasoning: false."""
    max_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    """As thinking_token_budget."""
