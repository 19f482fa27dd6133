"""The register of rules: kinds of findings (`findings.CODES`) and kinds of changes, each with its words.

Everything that shows a rule to a person (reports, `msmigrate rule`, `docs/code-rules.md`) takes it from here.
"""

from __future__ import annotations

from collections.abc import Iterable

from mappings.errors import UserError
from migrate.code.findings import CODES, Code
from migrate.report import LineStatus, Rule, Severity

_NOTHING = "Nothing to do."
_COMPARE = "Compare the module with --modules, or read the line."

CHANGES: dict[str, Code] = {
    # by the table
    "C101": Code(
        Severity.NOTE,
        "The table's row says that the MindSpore name means the same; the row was executed against torch.",
        _NOTHING,
        "same meaning",
        LineStatus.EXACT,
    ),
    "C102": Code(
        Severity.NOTE,
        "The row writes out a default, an argument or a helper where the two differ; it was executed against torch.",
        _NOTHING,
        "same meaning, written differently",
        LineStatus.PROVED,
    ),
    "C103": Code(
        Severity.NOTE,
        "The row, or its spelling for the chosen target, has not been executed against torch here.",
        _COMPARE,
        "row without evidence",
    ),
    # by meaning
    "C201": Code(
        Severity.NOTE,
        "A rule about meaning changed the line.",
        _COMPARE,
        "change by meaning",
    ),
    "C202": Code(
        Severity.NOTE,
        "A torch.nn.Module is a mindspore.nn.Cell, whose forward() is called construct().",
        _NOTHING,
        "module becomes a cell",
        LineStatus.EXACT,
    ),
    "C203": Code(
        Severity.NOTE,
        "A Cell takes no attribute before its own __init__ ran, so that call moved to the top.",
        _COMPARE,
        "super().__init__() first",
    ),
    "C204": Code(
        Severity.NOTE,
        "MindSpore places tensors itself, so moving a tensor or a module to a device gives the same object.",
        _NOTHING,
        "device transfer",
        LineStatus.EXACT,
    ),
    "C205": Code(
        Severity.NOTE,
        "What the method does depends on an object of unknown type; a helper decides when the program runs.",
        _COMPARE,
        "transfer decided at run time",
    ),
    "C206": Code(
        Severity.NOTE,
        "An in-place method became an assignment; names that share the memory were looked for and not found.",
        _COMPARE,
        "in-place method",
    ),
    "C207": Code(
        Severity.NOTE,
        "A MindSpore tensor takes no format specification, the number in it does.",
        _NOTHING,
        "formatted tensor",
        LineStatus.EXACT,
    ),
    "C208": Code(
        Severity.NOTE,
        "MindSpore has no gradient of its product of complex numbers; a helper multiplies the parts.",
        _COMPARE,
        "product of complex numbers",
    ),
    "C209": Code(
        Severity.NOTE,
        "The name is given as a string that is written in the call, so it is known which one it is.",
        _NOTHING,
        "name given as a string",
        LineStatus.EXACT,
    ),
    "C210": Code(
        Severity.NOTE,
        "The statement has no effect any more once devices are gone.",
        _NOTHING,
        "statement without effect",
        LineStatus.EXACT,
    ),
    "C211": Code(
        Severity.NOTE,
        "torch changes the tensor itself, which something else holds as well; so does an assignment to its elements.",
        _COMPARE,
        "augmented assignment to a shared tensor",
    ),
    "C212": Code(
        Severity.NOTE,
        "`:` at the end of an index says nothing, and MindSpore misreads a mask of several axes before it.",
        _NOTHING,
        "full slice at the end of an index",
        LineStatus.EXACT,
    ),
    "C213": Code(
        Severity.NOTE,
        "The layer, or a length or tensor beside it, is cut over tensor parallel ranks; its flow was followed.",
        "Train a few steps on one and on two ranks and compare.",
        "cut over ranks",
    ),
    "C214": Code(
        Severity.NOTE,
        "inplace=True was dropped; if the input is used afterwards, torch has overwritten it and MindSpore has not.",
        _COMPARE,
        "in-place module made an ordinary one",
        safe=False,
    ),
    "C215": Code(
        Severity.NOTE,
        "The decorator gives back the function it is given; what is compiled is decided by a compared run.",
        _NOTHING,
        "decorator without effect",
        LineStatus.EXACT,
    ),
    "C216": Code(
        Severity.NOTE,
        "An object of unknown type is moved to a device; it was taken for a tensor, a module or a batch of them.",
        _COMPARE,
        "transfer of an unknown object",
    ),
    # imports
    "C301": Code(
        Severity.NOTE,
        "Every name that the line imports from torch was converted.",
        _NOTHING,
        "import of torch removed",
        LineStatus.EXACT,
    ),
    "C302": Code(
        Severity.NOTE,
        "Something that the line imports from torch was not converted, so the import stays.",
        "Work through the other findings of the file.",
        "import of torch stays",
        LineStatus.UNSUPPORTED,
    ),
    "C303": Code(
        Severity.NOTE,
        "The package has a counterpart with the same names in ms_compat.",
        _NOTHING,
        "import of a counterpart",
        LineStatus.PROVED,
    ),
}
"""Kinds of changes; they become no findings, only the status of their lines."""


def _rules() -> dict[str, Rule]:
    return {
        code: Rule(code, entry.title, entry.severity, entry.why, entry.fix, entry.safe)
        for code, entry in {**CHANGES, **CODES}.items()
    }


RULES = _rules()


def status_of(code: str) -> LineStatus:
    """Status of the lines that a rule speaks of."""
    return (CHANGES.get(code) or CODES[code]).status


def used(codes: Iterable[str]) -> dict[str, Rule]:
    """The rules of some codes, in the order of the register."""
    wanted = set(codes)
    return {code: rule for code, rule in RULES.items() if code in wanted}


def rule(code: str) -> Rule:
    """The rule of a code.

    Raises:
        UserError: there is none.
    """
    found = RULES.get(code.upper())
    if found is None:
        raise UserError(f"{code}: no such rule; `msmigrate rule` lists them")
    return found


def text(found: Rule) -> str:
    """A rule for the terminal."""
    status = status_of(found.code).value
    return "\n".join(
        [
            f"{found.code} {found.title}",
            f"  severity  {found.severity.value}",
            f"  lines     {status}",
            f"  applied   {'always' if found.safe else 'with --unsafe only'}",
            f"  why       {found.why}",
            f"  fix       {found.fix}",
        ]
    )


def page() -> str:
    """`docs/code-rules.md`."""
    lines = [
        "# Rules of the code converter",
        "",
        "Written by `msmigrate rule --markdown` from `migrate/code/rules.py` and `migrate/code/findings.py`; a test",
        "holds it current. Codes with M are findings, codes with C are changes that only give a line its status. An",
        "unsafe rule is applied with `msmigrate code --unsafe` only.",
        "",
    ]
    for found in RULES.values():
        unsafe = "" if found.safe else ", unsafe"
        lines += [
            f"## {found.code}: {found.title}",
            "",
            f"{found.severity.value.capitalize()}{unsafe}; its lines: {status_of(found.code).value}.",
            "",
            f"{found.why}",
            "",
            f"*What to do:* {found.fix}",
            "",
        ]
    return "\n".join(lines)
