"""A model of ModelScope's hub."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from ballast_operator.api.base import rules
from ballast_operator.api.sources.hub_model import QUANT_OR_FILES_RULE, HubModel, Revision
from ballast_operator.api.sources.pulled_source import CLAIM_OR_FOLDER_RULE, KeptOnVolume


class ModelScopeModel(HubModel):
    """A model of ModelScope, with the credentials."""

    model_config = ConfigDict(json_schema_extra=rules(QUANT_OR_FILES_RULE))

    revision: Revision = Field(
        default="master", description="Branch, tag or commit. Only a commit always has the same files."
    )
    site: Literal["modelscope.cn", "modelscope.ai"] = Field(
        default="modelscope.cn", description="One of the hub's two sites."
    )

    @property
    def name(self) -> str:
        """The model's name, as `ballast pull` and `ballast serve` take it."""
        return f"{self.site}/{super().name}"


class ModelScopeSource(ModelScopeModel, KeptOnVolume):
    """A model of ModelScope, and its volume."""

    model_config = ConfigDict(json_schema_extra=rules(QUANT_OR_FILES_RULE, CLAIM_OR_FOLDER_RULE))
