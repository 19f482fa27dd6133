"""C314 to C316: the chat template can be read, and the markers in it are tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jinja2 import Environment, TemplateError, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
# What families use to mark turns: <|im_start|>, <start_of_turn>, [INST], <<SYS>>, <s>, [|assistant|].
MARKER = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<(?:/)?(?:start|end)_of_[a-z]+>|\[/?INST\]|</?s>|<(?:bos|eos|pad)>|\[\|[a-z]+\|\]"
)
CONVERSATION = [
    {"role": "user", "content": "How many layers?"},
    {"role": "assistant", "content": "Three."},
    {"role": "user", "content": "Thanks."},
]


def templates(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """(file, field, text) of every chat template of a directory."""
    path = subject.directory / FILE
    if path.is_file():
        yield FILE, FILE, path.read_text(encoding="utf-8", errors="replace")
    value = subject.files.get(CONFIG, {}).get("chat_template")
    if isinstance(value, str):
        yield CONFIG, "chat_template", value
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                yield CONFIG, f"chat_template[{index}]", entry["template"]


def templates_work(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Each template is valid, and puts what was said into the prompt. Run in jinja's sandbox, as transformers does."""
    for file, field, text in templates(subject):
        tally.add()
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: "2026"}
        tokens = {name: value for name, value in subject.files.get(CONFIG, {}).items() if name.endswith("_token")}
        plain = {name: value["content"] if isinstance(value, dict) else value for name, value in tokens.items()}
        try:
            shown = environment.from_string(text).render(messages=CONVERSATION, add_generation_prompt=True, **plain)
        except TemplateSyntaxError as error:
            yield finding("C314", f"{field}: line {error.lineno}: {error.message}", file=file, field=field)
            continue
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            yield finding("C314", f"{field}: {type(error).__name__}: {error}", file=file, field=field)
            continue
        if lost := [turn["content"] for turn in CONVERSATION if turn["content"] not in shown]:
            yield finding("C315", f"{field}: {lost[0]!r} is not in the prompt", file=file, field=field)


def markers_are_tokens(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every marker that a template writes is one token."""
    if subject.tokenizer is None:
        return
    for file, field, text in templates(subject):
        for marker in sorted(_markers(text)):
            tally.add()
            if marker not in subject.tokenizer.ids:
                message = f"{field} writes {marker!r}, which tokenizer.json does not have as a token"
                yield finding("C316", message, file=file, field=field)


def _markers(text: str) -> set[str]:
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except TemplateSyntaxError:
        return set()  # C314
    written = [node.data for node in tree.find_all(nodes.TemplateData)]
    written += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return {match for piece in written for match in MARKER.findall(piece)}


def _refuse(message: Any) -> None:
    raise TemplateError(str(message))


ASSERTIONS = (templates_work, markers_are_tokens)
