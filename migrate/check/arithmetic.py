"""C41x: the sizes in `config.json` can belong to one model."""

from __future__ import annotations

from collections.abc import Iterator

from mappings.errors import UserError
from mappings.families.settings import field as field_value
from migrate.check import cells
from migrate.check.codes import finding
from migrate.check.positions import is_rotary
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

FILE = "config.json"
# From here on an epsilon is no rounding guard any more: activations have a mean square around 1.
LARGEST_EPS = 1e-2
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")


def dimensions_are_whole(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every dimension the family needs is a positive whole number, every switch a boolean."""
    if subject.family is None:
        return
    for source in subject.family.dimensions.values():
        if "is" in source:  # computed from others
            continue
        tally.add()
        field = source["field"]
        value = field_value(subject.config, source)
        if value is None and "default" not in source:
            yield finding("C414", f"{field} is missing", file=FILE, field=field)
        elif value is not None and (type(value) is not int or value < source.get("minimum", 1)):
            yield finding("C414", f"{field} is {value!r}, no positive whole number", file=FILE, field=field)
    for name, source in subject.family.flags.items():
        if "is" in source:
            continue
        tally.add()
        try:
            subject.family.flag(subject.config, name)
        except UserError as error:
            yield finding("C414", str(error), file=FILE, field=source["field"])


def heads_fit(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Query heads are a multiple of key/value heads, and divide the hidden size where no head size is given."""
    heads, kv_heads, hidden = (_size(subject, name) for name in HEAD_FIELDS)
    if heads and kv_heads:
        tally.add()
        if heads % kv_heads:
            message = f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            yield finding("C410", message, file=FILE, field="num_key_value_heads")
    if heads and hidden and subject.config.get("head_dim") is None:
        tally.add()
        if hidden % heads:
            message = f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and head_dim is not set"
            yield finding("C411", message, file=FILE, field="hidden_size")


def head_size_is_usable(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The head size is even, for RoPE."""
    heads, _, hidden = (_size(subject, name) for name in HEAD_FIELDS)
    given = _size(subject, "head_dim")
    derived = hidden // heads if heads and hidden and hidden % heads == 0 else None
    size = given or derived
    if size is None:
        return
    tally.add()
    if is_rotary(subject.config) and size % 2:
        yield finding("C413", f"head_dim is {size}", file=FILE, field="head_dim")
    if given is not None and given != derived and heads and hidden:
        message = f"head_dim is {given}, hidden_size / num_attention_heads is {hidden / heads:g}"
        yield finding("C412", message, file=FILE, field="head_dim")


def epsilon_is_small(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The epsilon of the norms is a small positive number."""
    tally.add()
    for field in EPSILONS:
        value = subject.config.get(field)
        if value is None:
            continue  # loaders agree on what their family has
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < LARGEST_EPS:
            yield finding("C415", f"{field} is {value!r}", file=FILE, field=field)


def no_dropout(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Dropout is off in decoders; those whose published files have it get a note."""
    kind = subject.config.get("model_type")
    if kind not in cells.DECODERS:
        return  # encoders drop values as their files say
    for name in ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"):
        value = subject.config.get(name)
        if value is not None:
            tally.add()
            if value:
                code = "C435" if kind in cells.DROPOUT_LEFT_OUT else "C416"
                yield finding(code, f"{name} is {value}", file=FILE, field=name)


def activation_is_known(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The activation is one ms_models has."""
    if not cells.is_built(subject.config):
        return
    tally.add()
    field, default, known = cells.ACTIVATIONS.get(str(subject.config["model_type"]), cells.SILU)
    value = subject.config.get(field, default)
    if value not in known:
        yield finding("C419", f"{field} is {value!r}; known are {', '.join(known)}", file=FILE, field=field)


def has_a_cell(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """ms_models can run the model."""
    if subject.family is None:
        return  # C418
    tally.add()
    if not cells.is_built(subject.config):
        message = (
            f"model_type {subject.config['model_type']!r} can be converted and recut; ms_models has no cell for it"
        )
        yield finding("C434", message, file=FILE, field="model_type")


def architecture_fits_family(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """`architectures` names a class of the family that `model_type` names."""
    named = subject.config.get("architectures")
    if subject.family is None or not isinstance(named, list) or not named:
        return
    tally.add()
    known = subject.family.architectures
    if not any(name in known for name in named):
        message = f"architectures is {named}, model_type {subject.config['model_type']!r} has {', '.join(known)}"
        yield finding("C417", message, file=FILE, field="architectures")


HEAD_FIELDS = ("num_attention_heads", "num_key_value_heads", "hidden_size")


def _size(subject: Subject, name: str) -> int | None:
    value = subject.config.get(name)
    return value if type(value) is int and value > 0 else None


ASSERTIONS = (
    dimensions_are_whole,
    heads_fit,
    head_size_is_usable,
    epsilon_is_small,
    no_dropout,
    activation_is_known,
    has_a_cell,
    architecture_fits_family,
)
