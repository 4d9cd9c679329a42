"""One ModelCache, read from the API server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ballast_operator.api.inference_service import SpecError, sentence
from ballast_operator.api.model_cache_spec import CachedModel, ModelCacheSpec
from ballast_operator.names import API_VERSION, CACHE_KIND, Ref


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Identity and spec of one ModelCache."""

    ref: Ref
    uid: str
    generation: int
    spec: ModelCacheSpec
    deleting: bool = False

    @classmethod
    def from_api(cls, body: Mapping[str, Any]) -> ModelCache:
        """Read it from JSON or YAML. Raises SpecError."""
        metadata = body["metadata"]
        try:
            spec = ModelCacheSpec.model_validate(body.get("spec", {}), extra="ignore")
        except ValidationError as error:
            raise SpecError("; ".join(sentence(problem) for problem in error.errors())) from None
        ref = Ref(metadata.get("namespace", "default"), metadata["name"])
        uid, generation = metadata.get("uid", ""), metadata.get("generation", 0)
        return cls(ref, uid, generation, spec, "deletionTimestamp" in metadata)

    def owner_reference(self) -> dict[str, Any]:
        """The owner reference of its Jobs and its policy, so that the garbage collector removes them with it."""
        owner = {"apiVersion": API_VERSION, "kind": CACHE_KIND, "name": self.ref.name, "uid": self.uid}
        return {**owner, "controller": True}

    def model(self, name: str) -> CachedModel | None:
        """The model of this name; None if the spec does not list it."""
        return next((found for found in self.spec.models if found.name == name), None)
