"""A model of a hub, which a Job downloads to a volume before engines start."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from ballast_operator.api.base import rules
from ballast_operator.api.sources.hub_model import QUANT_OR_FILES_RULE, HubModel
from ballast_operator.api.sources.pulled_source import CLAIM_OR_FOLDER_RULE, Endpoint, KeptOnVolume


class HuggingFaceModel(HubModel):
    """A model of Hugging Face's hub or of a mirror, with the credentials."""

    model_config = ConfigDict(json_schema_extra=rules(QUANT_OR_FILES_RULE))

    endpoint: Endpoint = Field(default="https://huggingface.co", description="URL of the hub, or of a mirror.")


class HuggingFaceSource(HuggingFaceModel, KeptOnVolume):
    """A model of a hub, and its volume."""

    model_config = ConfigDict(json_schema_extra=rules(QUANT_OR_FILES_RULE, CLAIM_OR_FOLDER_RULE))
