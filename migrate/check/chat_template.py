"""C314 to C316: the chat template can be read, and the markers in it are tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

FILE = "chat_template.jinja"
FOLDER = "additional_chat_templates"
CONFIG, LEGACY = "tokenizer_config.json", "chat_template.json"
TURNS_OF_LOOPS = 100_000
# What families use to mark turns: <|im_start|>, <start_of_turn>, [INST], <<SYS>>, <s>, [|assistant|].
MARKER = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<(?:/)?(?:start|end)_of_[a-z]+>|\[/?INST\]|</?s>|<(?:bos|eos|pad)>|\[\|[a-z]+\|\]"
)
CONVERSATION = [
    {"role": "user", "content": "How many layers?"},
    {"role": "assistant", "content": "Three."},
    {"role": "user", "content": "Thanks."},
]


def templates(subject: Subject) -> Iterator[tuple[str, str, Any]]:
    """(file, field, value) of every chat template of a directory, wherever transformers keeps one."""
    for path in (subject.directory / FILE, *sorted((subject.directory / FOLDER).glob("*.jinja"))):
        if path.is_file():
            name = path.relative_to(subject.directory).as_posix()
            yield name, name, path.read_text(encoding="utf-8", errors="replace")
    for file in (CONFIG, LEGACY):
        value = subject.files.get(file, {}).get("chat_template")
        if isinstance(value, list):
            for index, entry in enumerate(value):
                yield file, f"chat_template[{index}]", entry.get("template") if isinstance(entry, dict) else entry
        elif value is not None:
            yield file, "chat_template", value


def templates_work(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Each template is valid, and puts what was said into the prompt. Run in jinja's sandbox, as transformers does."""
    for file, field, text in templates(subject):
        tally.add()
        try:
            shown = _render(subject, text)
        except TemplateSyntaxError as error:
            yield finding("C314", f"{field}: line {error.lineno}: {error.message}", file=file, field=field)
            continue
        except Exception as error:  # noqa: BLE001 - a template is a program, and raises what programs raise
            yield finding("C314", f"{field}: {type(error).__name__}: {error}", file=file, field=field)
            continue
        if lost := [turn["content"] for turn in CONVERSATION if turn["content"] not in shown]:
            yield finding("C315", f"{field}: {lost[0]!r} is not in the prompt", file=file, field=field)


def markers_are_tokens(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every marker that a template writes out, or puts together, is one token."""
    if subject.tokenizer is None:
        return
    for file, field, text in templates(subject):
        for marker in sorted(_markers(subject, text)):
            tally.add()
            if marker not in subject.tokenizer.ids:
                message = f"{field} writes {marker!r}, which tokenizer.json does not have as a token"
                yield finding("C316", message, file=file, field=field)


def _markers(subject: Subject, text: Any) -> set[str]:
    try:
        tree = _environment().parse(text)
        written = [node.data for node in tree.find_all(nodes.TemplateData)]
        written += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
        written.append(_render(subject, text))  # "<|" + role + "|>"
    except Exception:  # noqa: BLE001 - C314 says what it is
        return set()
    return {match for piece in written for match in MARKER.findall(piece)}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    left = [TURNS_OF_LOOPS]

    def counted(*bounds: int) -> range:
        numbers = range(*bounds)
        left[0] -= len(numbers)
        if left[0] < 0:
            raise OverflowError(f"its loops make more than {TURNS_OF_LOOPS} turns")
        return numbers

    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: "2026", "range": counted}
    return environment


def _render(subject: Subject, text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"is a {type(text).__name__}, no text")
    tokens = {name: value for name, value in subject.files.get(CONFIG, {}).items() if name.endswith("_token")}
    plain = {name: value["content"] if isinstance(value, dict) else value for name, value in tokens.items()}
    return _environment().from_string(text).render(messages=CONVERSATION, add_generation_prompt=True, **plain)


class Generation(Extension):
    """`{% generation %}` marks what the assistant says, for training masks; the text stays."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: Any) -> None:
    raise TemplateError(str(message))


ASSERTIONS = (templates_work, markers_are_tokens)
