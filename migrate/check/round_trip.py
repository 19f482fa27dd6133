"""C209: sample text survives the tokenizer. Needs the `tokenizers` library; skipped without it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

FILE = "tokenizer.json"
# Indentation, tabs, digits, quotes, accents, CJK, an emoji outside the basic plane and a CRLF: what breaks tokenizers.
SAMPLES = (
    "def f(x: int) -> int:\n    return x + 1\n",
    "\tif a != b and c >= 1_000.5e-3:\r\n",
    "'single' \"double\" `back` {} [] <>",
    "na\u00efve caf\u00e9, Stra\u00dfe, \u6a21\u578b\u8bad\u7ec3, \u0440\u0443\u0441\u0441\u043a\u0438\u0439",
    "grin \U0001f600 end",
)


def available() -> bool:
    """Whether the tokenizers library is importable."""
    return find_spec("tokenizers") is not None


def text_survives(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every sample decodes to itself."""
    if subject.tokenizer is None or not available():
        return
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(subject.directory / FILE))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a file it refuses
        yield finding("C208", f"the tokenizers library refuses it: {error}", file=FILE)
        return
    saved = [name for name in ("truncation", "padding") if getattr(tokenizer, name) is not None]
    for name in saved:
        yield finding("C210", f"{name} is switched on: {getattr(tokenizer, name)}", file=FILE, field=name)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    changed = []
    for text in SAMPLES:
        tally.add()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        # A leading blank is how SentencePiece-style tokenizers mark a word; decoders may keep it.
        back = tokenizer.decode(ids, skip_special_tokens=False)
        if back.removeprefix(" ") != text:
            changed.append((text, back))
    if changed:
        text, back = changed[0]
        yield finding(
            "C209", f"{len(changed)} of {len(SAMPLES)} samples change, e.g. {text!r} becomes {back!r}", file=FILE
        )


ASSERTIONS = (text_survives,)
