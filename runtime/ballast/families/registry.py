"""The table of families, and the search in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Mapping
from functools import lru_cache

from ballast.families import (
    deepseek,
    deepseek4,
    deepseek32,
    glm,
    gpt_oss,
    hunyuan,
    kimi,
    laguna,
    mimo,
    minimax,
    mistral,
    qwen3,
    step,
)
from ballast.families.architecture import Architecture
from ballast.families.deepseek.architecture import ARCHITECTURE as DEEPSEEK2
from ballast.families.deepseek4.architecture import ARCHITECTURE as DEEPSEEK4
from ballast.families.deepseek32.architecture import ARCHITECTURE as DEEPSEEK32
from ballast.families.dots.architecture import ARCHITECTURE as DOTS1
from ballast.families.family import Family, KnownModel, Release, ReplyForm
from ballast.families.glm.architecture import ARCHITECTURE as GLM4MOE
from ballast.families.glm.architecture import EARLY_NEXT_ARCHITECTURE as GLM5NEXT
from ballast.families.glm.architecture import NEXT_ARCHITECTURE as GLM5_NEXT
from ballast.families.glm.architecture import SPARSE_ARCHITECTURE as GLM_DSA
from ballast.families.gpt_oss.architecture import ARCHITECTURE as GPT_OSS
from ballast.families.hunyuan.architecture import ARCHITECTURE as HY_V3
from ballast.families.kimi.architecture import LINEAR_ARCHITECTURE as KIMI_LINEAR
from ballast.families.laguna.architecture import ARCHITECTURE as LAGUNA
from ballast.families.mimo.architecture import ARCHITECTURE as MIMO2
from ballast.families.minimax.architecture import ARCHITECTURE as MINIMAX_M2
from ballast.families.mistral.architecture import ARCHITECTURE as MISTRAL4
from ballast.families.qwen3.architecture import ARCHITECTURE as QWEN3MOE
from ballast.families.qwen3.architecture import FLASH_NEXT_ARCHITECTURE as QWEN4EXP
from ballast.families.qwen3.architecture import NEXT_ARCHITECTURE as QWEN3NEXT
from ballast.families.qwen3.architecture import QWEN35_ARCHITECTURE as QWEN35MOE
from ballast.families.step.architecture import ARCHITECTURE as STEP35

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        deepseek.FAMILY,
        deepseek32.FAMILY,
        deepseek4.FAMILY,
        kimi.FAMILY,
        glm.FAMILY,
        qwen3.FAMILY,
        minimax.FAMILY,
        hunyuan.FAMILY,
        gpt_oss.FAMILY,
        step.FAMILY,
        mimo.FAMILY,
        laguna.FAMILY,
        mistral.FAMILY,
    )
}
"""By name. If a file does not identify a family, the first one is used."""

ARCHITECTURES: Mapping[str, Architecture] = {
    each.name: each
    for each in (
        *(DEEPSEEK2, DEEPSEEK32, QWEN3MOE, GLM4MOE, GLM_DSA, MINIMAX_M2, HY_V3, DOTS1, GPT_OSS),
        *(STEP35, MIMO2, LAGUNA, MISTRAL4, QWEN3NEXT, QWEN35MOE, KIMI_LINEAR, GLM5_NEXT, GLM5NEXT, QWEN4EXP),
        DEEPSEEK4,
    )
}
"""By `general.architecture`."""

RELEASES: Mapping[str, tuple[Family, Release]] = {
    release.name: (family, release) for family in FAMILIES.values() for release in family.releases
}
"""By the name that `--chat_template` takes."""

KNOWN_MODELS: tuple[KnownModel, ...] = tuple(model for family in FAMILIES.values() for model in family.models)
"""Models of every family whose arithmetic is served."""

DEFAULT_FORM: ReplyForm = deepseek.FAMILY.reply

_TINY = frozenset(
    {
        "1498f4e9ae99dd3dd31e344b1002412133850b2296aab4931b37484d637714e2",
        "33284b08006941e7866a244161f80c38d7fe6b10af5fb88133bed737811feea7",
        "d656c089e1af48e5657f18d63c9cc01e2c7ee74901182a6f12bd3d1b6220d02d",
    }
)
"""SHA-256 of the templates that the built-in model and the random ones carry in their files."""

_DELIMITER_TRIM = re.compile(r"(?<=\{[{%])-|-(?=[%}]\})")
_LAYOUT = re.compile(r"\s|\\n")


def release_of(template: str) -> Release | None:
    """The release whose template this is, as published or as Ballast has it; None for any other template, which is used
    unchanged. Of releases that share Ballast's, the first one without options: it renders what the template alone
    does."""
    found = fingerprint(template)
    names = (family.published[found] for family in FAMILIES.values() if found in family.published)
    name = next(names, None) or _own_releases().get(found)
    return None if name is None else RELEASES[name][1]


def source_of(release: Release) -> str:
    """The text of the release's template."""
    return RELEASES[release.name][0].source(release)


def templates_for(reply: ReplyForm, architecture: str) -> list[str]:
    """The names of the templates of the family whose replies have this form, for files with this
    `general.architecture`."""
    return [
        name
        for name, (family, release) in RELEASES.items()
        if family.reply is reply and architecture in (release.architectures or (family.architecture,))
    ]


def without_template(reply: ReplyForm, architecture: str) -> str | None:
    """The release of a file without a template whose replies have this form: the only one of its architecture, or the
    family's choice; None: none is known. `architecture`: the file's `general.architecture`."""
    names = templates_for(reply, architecture)
    if len(names) == 1:
        return names[0]
    return next((name for name in names if name == RELEASES[name][0].without_template), None)


def family_of_vocabulary(spellings: Container[str]) -> Family | None:
    """The family that a vocabulary's added tokens tell: the last, since later ones may have the tokens of those
    before."""
    return next(
        (
            family
            for family in reversed(tuple(FAMILIES.values()))
            if all(token in spellings for token in family.vocabulary)
        ),
        None,
    )


def is_own(template: str) -> bool:
    """Whether this is, to the letter, one of Ballast's templates. Their time and memory grow with the messages alone,
    so they need no guard."""
    return _sha256(template) in _own()


@lru_cache(maxsize=1)
def _own() -> frozenset[str]:
    return _TINY | {_sha256(family.source(release)) for family, release in RELEASES.values()}


@lru_cache(maxsize=1)
def _own_releases() -> Mapping[str, str]:
    """Fingerprint of a template of Ballast's → name of its release."""
    plain = [(family, release) for family, release in RELEASES.values() if not release.options]
    return {fingerprint(family.source(release)): release.name for family, release in reversed(plain)}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint(template: str) -> str:
    """16 hexadecimal digits that do not depend on what converters change in a template: indentation, and whether line
    breaks in strings are escaped."""
    bare = _LAYOUT.sub("", _DELIMITER_TRIM.sub("", template))
    return _sha256(bare)[:16]
