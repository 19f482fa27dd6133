"""Clashes between the names that a repository, the packages it imports and the installed libraries give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mappings.families import families
from migrate.check.codes import finding
from migrate.check.registry.installed import Library, cached_remote_code
from migrate.check.registry.sighting import REPOSITORY, Sighting
from migrate.report import Finding


def judge(
    sightings: Sequence[Sighting],
    library: Library | None,
    configs: Mapping[str, Mapping[str, object]],
    cache: Path | None,
) -> Iterator[Finding]:
    """What is wrong with the names.

    Args:
        sightings: of the repository and of the packages it imports.
        library: the installed transformers.
        configs: `config.json` by the path to show.
        cache: transformers' folder of cached modules; None looks at none.
    """
    registrations = [found for found in sightings if found.kind == "config"]
    for found in registrations:
        if found.name is None:
            yield _at(found, finding("C508", f"{_whose(found)}registers a name that the source does not write out"))
    yield from _taken(registrations, library)
    yield from _twice(registrations)
    yield from _inconsistent(sightings, registrations)
    yield from _silent_classes(sightings, registrations, library)
    yield from _configs(sightings, library, configs)
    names = {found.name for found in sightings if found.name is not None and found.origin == REPOSITORY}
    if cache is not None:
        for name in sorted(names):
            for folder in cached_remote_code(name, cache):
                yield finding("C506", f"{name!r}: cached code in {folder} bears the name too")
    # What is installed as well has a finding above.
    for name in sorted(names & _ours() - set(library.names if library is not None else ())):
        places = ", ".join(found.place for found in sightings if found.name == name)
        yield finding("C507", f"{name!r} ({places}) is the model_type of an ms_models family")


def _taken(registrations: Sequence[Sighting], library: Library | None) -> Iterator[Finding]:
    for found in registrations:
        owner = library.names.get(found.name) if library is not None and found.name is not None else None
        if owner is None or library is None:
            continue
        whose = f"transformers {library.version} has it already ({owner[0]}, {owner[1]})"
        if found.exist_ok:
            yield _at(found, finding("C502", f"{_whose(found)}takes {found.name!r} over; {whose}"))
            continue
        other = free_name(str(found.name), set(library.names))
        fix = (
            "Rename it, in the class and in every config.json: "
            f"`msmigrate registry REPO --rename {found.name}={other} --write`. "
            f"If {owner[0]} builds the same model, delete the registration instead. exist_ok=True hides the installed "
            "class from the whole process."
        )
        yield _at(found, finding("C501", f"{_whose(found)}registers {found.name!r}; {whose}", fix=fix))


def _twice(registrations: Sequence[Sighting]) -> Iterator[Finding]:
    first: dict[str, Sighting] = {}
    for found in registrations:
        if found.name is None:
            continue
        before = first.setdefault(found.name, found)
        if before is not found and before.class_name != found.class_name:
            message = (
                f"{found.name!r} is registered for {before.class_name or '?'} in {before.place} and for "
                f"{found.class_name or '?'} in {found.place}"
            )
            yield _at(found, finding("C503", message))


def _inconsistent(sightings: Sequence[Sighting], registrations: Sequence[Sighting]) -> Iterator[Finding]:
    own = {(found.origin, found.class_name): found for found in sightings if found.kind == "class" and found.name}
    for found in registrations:
        bears = own.get((found.origin, found.class_name))
        if bears is not None and found.name is not None and bears.name != found.name:
            message = (
                f"{_whose(found)}registers {found.class_name} as {found.name!r}, its model_type is {bears.name!r} "
                f"({bears.place})"
            )
            yield _at(found, finding("C504", message))


def _silent_classes(
    sightings: Sequence[Sighting], registrations: Sequence[Sighting], library: Library | None
) -> Iterator[Finding]:
    registered = {(found.origin, found.class_name) for found in registrations}
    for found in sightings:
        is_taken = library is not None and found.name in library.names
        if found.kind != "class" or not is_taken or (found.origin, found.class_name) in registered:
            continue
        if library is not None and library.names[str(found.name)][0] == found.class_name:
            continue  # a copy of the library's own file: the same class under the same name
        message = f"{_whose(found)}{found.class_name} bears {found.name!r}, the name of an installed configuration"
        yield _at(found, finding("C510", message))


def _configs(
    sightings: Sequence[Sighting], library: Library | None, configs: Mapping[str, Mapping[str, object]]
) -> Iterator[Finding]:
    known = {found.name for found in sightings}
    for path, config in configs.items():
        name = config.get("model_type")
        if not isinstance(name, str):
            yield replace(finding("C511", f"{path}: no model_type", field="model_type"), file=path)
        elif "auto_map" in config and library is not None and name in library.names:
            message = f"{path}: model_type {name!r} is installed ({library.names[name][0]}), auto_map names remote code"
            yield replace(finding("C505", message, field="auto_map"), file=path)
        elif "auto_map" not in config and name not in known and (library is None or name not in library.names):
            message = f"{path}: nothing installed and nothing here registers model_type {name!r}"
            yield replace(finding("C512", message, field="model_type"), file=path)


def free_name(name: str, taken: set[str]) -> str:
    """A name like another one that nobody has."""
    candidate = f"{name}_custom"
    number = 2
    while candidate in taken:
        candidate, number = f"{name}_custom{number}", number + 1
    return candidate


def _ours() -> set[str]:
    return {name for family in families().values() for name in family.model_types}


def _whose(sighting: Sighting) -> str:
    """Begins a message about a package; that of the repository has file and line beside it."""
    return "" if sighting.origin == REPOSITORY else f"{sighting.place}: "


def _at(sighting: Sighting, found: Finding) -> Finding:
    return replace(found, file=sighting.file, line=sighting.line) if sighting.origin == REPOSITORY else found
