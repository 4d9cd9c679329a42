"""Decides which models a place keeps, downloads and removes, so that they fit its capacity. Pure.

A place is a node, or the claim. A model that a service names or a pod uses is never removed. The others give way to it,
the one that was used longest ago first; they never give way to an unused model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model that the spec lists, by its folder."""

    folder: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """A model that uses room in the place: it is present, is being downloaded or is being removed."""

    num_bytes: int
    last_used: str = ""
    """Time of last use, in a form that sorts by time; empty while it is not present yet, or is in use."""
    _: KW_ONLY
    fails: bool = False
    """Its download fails: it is evicted before all others."""
    leaving: bool = False
    """It is being removed."""


@dataclass(frozen=True, slots=True)
class PlacePlan:
    """The next step in one place. All are folders."""

    pull: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    wait: tuple[str, ...] = ()
    """They are downloaded once there is room: others are being removed."""
    no_room: tuple[str, ...] = ()


def plan_place(
    capacity: int,
    wanted: Sequence[Wanted],
    held: Mapping[str, Held],
    named: Collection[str],
    mounted: Collection[str],
) -> PlacePlan:
    """The next step. `named`: folders that services use; `mounted`: folders that pods in this place mount."""
    used = {*mounted, *(one.folder for one in wanted if one.folder in named)}
    staying = {folder: one for folder, one in held.items() if folder in used and not one.leaving}
    room = capacity - sum(one.num_bytes for one in staying.values())
    keep, no_room = set(staying), []
    for one in sorted((one for one in wanted if one.folder not in staying), key=lambda one: _rank(one, held, named)):
        if one.num_bytes <= room:
            keep.add(one.folder)
            room -= one.num_bytes
        else:
            no_room.append(one.folder)
    taken = sum(one.num_bytes for one in held.values())
    pull, wait = [], []
    for one in wanted:
        if one.folder not in keep or one.folder in held:
            continue
        if taken + one.num_bytes <= capacity:
            pull.append(one.folder)
            taken += one.num_bytes
        else:
            wait.append(one.folder)
    remove = tuple(folder for folder, one in held.items() if folder not in keep and not one.leaving)
    return PlacePlan(tuple(pull), remove, tuple(wait), tuple(no_room))


def _rank(one: Wanted, held: Mapping[str, Held], named: Collection[str]) -> tuple[int, tuple[int, ...]]:
    """The order in which models get room; equal ranks keep the order of the spec."""
    if one.folder in named:
        return 0, ()
    here = held.get(one.folder)
    if here is None or here.leaving:
        return 3, ()
    if here.fails:
        return 2, ()
    newest_first = tuple(-ord(char) for char in here.last_used or "~")  # "~" sorts after every time
    return 1, newest_first
