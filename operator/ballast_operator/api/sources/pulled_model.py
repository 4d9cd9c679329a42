"""The models that a Job downloads, from any source."""

from __future__ import annotations

from ballast_operator.api.sources.hugging_face import HuggingFaceModel, HuggingFaceSource
from ballast_operator.api.sources.model_scope import ModelScopeModel, ModelScopeSource
from ballast_operator.api.sources.oci_model import OciModel, OciSource
from ballast_operator.api.sources.s3_model import S3Model, S3Source

PulledModel = HuggingFaceModel | ModelScopeModel | S3Model | OciModel
"""A model, for a ModelCache or a service."""
PulledSource = HuggingFaceSource | ModelScopeSource | S3Source | OciSource
"""A model that is downloaded for a service, and its volume."""
