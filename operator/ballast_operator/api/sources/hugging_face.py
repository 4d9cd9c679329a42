"""A model of a hub, which the operator has pulled onto a volume before engines start."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from ballast_operator.api.base import rules
from ballast_operator.api.sources.hub_model import QUANT_OR_FILES_RULE, HubModel
from ballast_operator.api.sources.pulled_source import CLAIM_OR_FOLDER_RULE, Endpoint, KeptOnVolume


class HuggingFaceModel(HubModel):
    """Which model of Hugging Face's hub or of a mirror, and who asks for it."""

    model_config = ConfigDict(json_schema_extra=rules(QUANT_OR_FILES_RULE))

    endpoint: Endpoint = Field(default="https://huggingface.co", description="URL of the hub, or of a mirror.")


class HuggingFaceSource(HuggingFaceModel, KeptOnVolume):
    """Which model of a hub, and where it is kept."""

    model_config = ConfigDict(json_schema_extra=rules(QUANT_OR_FILES_RULE, CLAIM_OR_FOLDER_RULE))
