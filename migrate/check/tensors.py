"""C42x and C43x: the stored tensors are exactly those that `config.json` implies. Reads headers, not data."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from mappings.families import Family, Parameter
from mappings.families.encodings import stored_names
from mappings.formats.hf_directory import INDEX, read_json
from mappings.formats.safetensors import TensorEntry, read_pieces
from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.check.vocabulary_rows import vocabulary_rows
from migrate.report import Finding

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
EXPERT = re.compile(r"(\.experts\.)(\d+)\.")
LAYER = re.compile(r"((?:^|\.)(?:layers|layer|h)\.)(\d+)\.")


def layers_are_all_there(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The file holds as many layers as `num_hidden_layers` says."""
    family, tensors = _ready(subject)
    if family is None:
        return
    tally.add()
    expected, stored = family.dims(subject.config)["layers"], _stored_layers(tensors)
    # Layers that predict further tokens are behind the others, and may be left out.
    if stored - set(family.layer_indices(subject.config)[expected:]) != set(range(expected)):
        message = f"num_hidden_layers is {expected}, the weights hold layers {_ranges(stored) or 'none'}"
        yield finding("C430", message, file="config.json", field="num_hidden_layers")


def names_begin_right(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The names are the model's, without what wrappers put before them."""
    if (beginning := _beginning(subject)) is None:
        return
    tally.add()
    taken, given = beginning
    what = f"begins with {taken!r}" if taken else f"lacks {given!r} at its beginning"
    yield finding("C436", f"every tensor {what}, e.g. {next(iter(subject.tensors or {}))}", tensor=taken or given)


def _beginning(subject: Subject) -> tuple[str, str] | None:
    """(what stands before the names, what should) where the stored names fit the model only with that changed."""
    family, tensors = _ready(subject)
    if family is None or not tensors:
        return None
    expected = {parameter.name for parameter in subject.parameters}
    if expected & tensors.keys() - set(vocabulary_rows(subject).heads):
        return None
    first = next(iter(sorted(expected)))
    starts = {name.removesuffix(first) for name in tensors if name.endswith(f".{first}")}
    for start in starts:
        if all(f"{start}{name}" in tensors for name in expected):
            return start, ""
    if family.prefix and {name.removeprefix(family.prefix) for name in expected} <= tensors.keys():
        return "", family.prefix
    return None


def index_has_the_size(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """`total_size` of the index is the number of bytes of the tensors."""
    path = subject.directory / INDEX
    if subject.tensors is None or not path.is_file():
        return
    said = (read_json(path).get("metadata") or {}).get("total_size")
    found = sum(entry.nbytes for entry in subject.tensors.values())
    if said is not None:
        tally.add()
        if said != found:
            yield finding("C437", f"total_size is {said!r}, the tensors have {found} bytes", file=INDEX)


def nothing_is_missing(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every parameter of the model is stored."""
    family, tensors = _ready(subject)
    if family is None or _beginning(subject) is not None:  # C436
        return
    layers = _stored_layers(tensors)
    expected = {p.name: p for p in subject.parameters if p.layer is None or p.layer in layers}
    tally.add(len(expected))
    groups = {tensor.name: tensor.optional for tensor in family.spelling(subject.config) if tensor.optional}
    stored = {groups[name] for name in tensors if name in groups}
    missing = [name for name in expected if name not in tensors and groups.get(name) in (None, *stored)]
    for head in (name for name in vocabulary_rows(subject).heads if name in missing and len(expected[name].shape) == 2):
        missing.remove(head)
        yield finding(
            "C425",
            f"tie_word_embeddings is false, {head} is not stored",
            file="config.json",
            field="tie_word_embeddings",
            tensor=head,
        )
    for pattern, where in _grouped(missing):
        yield finding("C420", f"{pattern} is not stored{where}", tensor=pattern)


def nothing_is_unexpected(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every stored tensor belongs to the model."""
    family, tensors = _ready(subject)
    if family is None or _beginning(subject) is not None:  # C436
        return
    layers = family.dims(subject.config)["layers"]
    expected = {parameter.name for parameter in subject.parameters}
    # That weights are quantised is one finding (C429), not one for every scale.
    scales = {name for kind in family.encodings for base in expected for name in stored_names(kind, base).values()}
    tally.add(len(tensors))
    # Layers beyond num_hidden_layers are one finding of their own (C430).
    strangers = [
        n
        for n in tensors
        if n not in expected and not family.is_ignored(n, subject.config) and _layer(n) < layers and n not in scales
    ]
    for pattern, where in _grouped(strangers):
        yield finding("C421", f"{pattern} is stored{where}, the model has no such parameter", tensor=pattern)


def shapes_fit(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every tensor has the shape its dimensions give. Vocabulary rows are the vocabulary topic's."""
    family, tensors = _ready(subject)
    if family is None:
        return
    wrong: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[str]] = defaultdict(list)
    vocabulary = vocabulary_rows(subject).names
    for parameter in subject.parameters:
        entry = tensors.get(parameter.name)
        if entry is None:
            continue
        tally.add()
        if not _shape_fits(parameter, entry, parameter.name in vocabulary):
            wrong[_pattern(parameter.name), entry.shape, parameter.shape].append(parameter.name)
    for (pattern, found, expected), names in wrong.items():
        where = _grouped(names)[0][1]
        yield finding(
            "C422", f"{pattern} has shape {list(found)}{where}, config.json gives {list(expected)}", tensor=pattern
        )


def tied_copy_is_equal(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """A tied model that stores lm_head too stores the embedding twice."""
    family, tensors = _ready(subject)
    if family is None:
        return
    for name, source in family.ties(subject.config).items():
        if name not in tensors or source not in tensors:
            continue
        tally.add()
        if not _same_bytes(tensors[name], tensors[source]):
            is_head = name in vocabulary_rows(subject).heads
            why = "tie_word_embeddings is true" if is_head else "they are one parameter"
            message = f"{why}, but {name} and {source} hold different {_difference(tensors[name], tensors[source])}"
            field = "tie_word_embeddings" if is_head else None
            yield finding("C426", message, file="config.json", field=field, tensor=name)


def dtypes_are_plain(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """All tensors have one floating dtype, the one `config.json` names, and none is quantised."""
    if (quantization := subject.config.get("quantization_config")) is not None:
        message = f"quantization_config is set: {quantization}"
        yield finding("C429", message, file="config.json", field="quantization_config")
    family, tensors = _ready(subject)
    if family is None:
        return
    parameters = [p.name for p in subject.parameters if p.name in tensors]
    counts = Counter(tensors[name].dtype for name in parameters)
    tally.add(len(parameters))
    listed = ", ".join(f"{dtype} ({number})" for dtype, number in counts.most_common())
    for dtype in counts:
        if dtype not in FLOATS:
            example = next(name for name in parameters if tensors[name].dtype == dtype)
            yield finding("C429", f"{counts[dtype]} tensors are {dtype}, e.g. {example}", tensor=example)
            return
    if len(counts) > 1:
        yield finding("C423", f"dtypes in the weights: {listed}")
        return
    for field in ("dtype", "torch_dtype"):
        named, stored = subject.config.get(field), FLOATS[next(iter(counts))] if counts else None
        if isinstance(named, str) and stored and named.removeprefix("torch.") != stored:
            yield finding("C424", f"{field} is {named!r}, the weights are {stored}", file="config.json", field=field)


def _ready(subject: Subject) -> tuple[Family | None, Mapping[str, TensorEntry]]:
    return (subject.family, subject.tensors) if subject.family and subject.tensors is not None else (None, {})


def _shape_fits(parameter: Parameter, entry: TensorEntry, rows_are_free: bool) -> bool:
    if rows_are_free and entry.shape:
        return entry.shape[1:] == parameter.shape[1:]
    return entry.shape == parameter.shape


def _layer(name: str) -> int:
    match = LAYER.search(name)
    return int(match.group(2)) if match else -1


def _stored_layers(tensors: Iterable[str]) -> set[int]:
    return {_layer(name) for name in tensors} - {-1}


def _pattern(name: str) -> str:
    return EXPERT.sub(r"\1{expert}.", LAYER.sub(r"\1{layer}.", name))


def _grouped(names: Iterable[str]) -> list[tuple[str, str]]:
    """(pattern, " in layers 0-3") for names that differ in layer and expert only, so that one cause is one finding."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[_pattern(name)].append(name)
    return [(pattern, _where(alike)) for pattern, alike in groups.items()]


def _where(names: Iterable[str]) -> str:
    layers = {_layer(name) for name in names} - {-1}
    experts = {int(match[2]) for name in names if (match := EXPERT.search(name))}
    told = [
        f"{what}{'s' if len(numbers) > 1 else ''} {_ranges(numbers)}"
        for what, numbers in (("layer", layers), ("expert", experts))
        if numbers
    ]
    return f" in {', '.join(told)}" if told else ""


def _ranges(numbers: set[int]) -> str:
    """`0-3, 7` for {0, 1, 2, 3, 7}."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _difference(left: TensorEntry, right: TensorEntry) -> str:
    if left.dtype != right.dtype:
        return f"dtypes, {left.dtype} and {right.dtype}"
    return "values" if left.shape == right.shape else f"shapes, {list(left.shape)} and {list(right.shape)}"


def _same_bytes(left: TensorEntry, right: TensorEntry) -> bool:
    if (left.dtype, left.nbytes) != (right.dtype, right.nbytes):
        return False
    # Regular files: pread gives pieces of one size for both.
    return all(one == other for one, other in zip(read_pieces(left), read_pieces(right), strict=True))


ASSERTIONS = (
    names_begin_right,
    index_has_the_size,
    layers_are_all_there,
    nothing_is_missing,
    nothing_is_unexpected,
    shapes_fit,
    tied_copy_is_equal,
    dtypes_are_plain,
)
