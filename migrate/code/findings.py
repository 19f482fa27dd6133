"""The findings of the code converter: one table of codes with severity, why and fix."""

from __future__ import annotations

from dataclasses import dataclass

from migrate.report import Finding, LineStatus, Severity


@dataclass(frozen=True)
class Code:
    """A kind of finding."""

    severity: Severity
    why: str
    fix: str
    title: str
    """A few words, for lists."""
    line: LineStatus | None = None
    """Status of the lines where it is found; by default a warning says unsupported, a note needs review."""
    safe: bool = True
    """False: what it speaks of is converted with `--unsafe` only."""

    @property
    def status(self) -> LineStatus:
        """Status of the lines where it is found."""
        by_severity = LineStatus.REVIEW if self.severity is Severity.NOTE else LineStatus.UNSUPPORTED
        return self.line or by_severity


CODES: dict[str, Code] = {
    # files
    "M101": Code(
        Severity.WARNING,
        "The file is no valid Python 3 source, so nothing in it can be understood.",
        "Repair or delete the file; it was copied unchanged.",
        "file is not read",
    ),
    "M102": Code(
        Severity.WARNING,
        "A pass of the converter failed on this file.",
        "The file was copied unchanged; please report the message.",
        "file is not converted",
    ),
    "M103": Code(
        Severity.WARNING,
        "Names that come from a star import of torch cannot be told from the file's own.",
        "Replace the star by the names that are used.",
        "star import of torch",
        LineStatus.UNKNOWN,
    ),
    # names
    "M110": Code(
        Severity.WARNING,
        "The table of torch names does not have this name; it is never guessed.",
        "Write the MindSpore counterpart by hand, or add a row to mappings/api.",
        "unknown torch name",
        LineStatus.UNKNOWN,
    ),
    "M111": Code(
        Severity.WARNING,
        "MindSpore has no counterpart that keeps torch's meaning.",
        "See the advice in the message.",
        "no counterpart",
    ),
    "M112": Code(
        Severity.WARNING,
        "The call has arguments that the MindSpore counterpart cannot express.",
        "Rewrite the call without these arguments, or convert it by hand.",
        "arguments without counterpart",
    ),
    "M113": Code(
        Severity.WARNING,
        "The torch name is chosen at run time, so it is not known which one it is.",
        "Use a dictionary of the names that are meant.",
        "name chosen at run time",
        LineStatus.UNKNOWN,
    ),
    "M114": Code(
        Severity.WARNING,
        "The package works on torch tensors and needs torch itself.",
        "Replace it by code of your own or by a MindSpore package.",
        "package that needs torch",
    ),
    "M115": Code(
        Severity.WARNING,
        "The file names torch as a dependency in a form that is not rewritten.",
        "Replace torch by mindspore==2.10.* and numpy by numpy>=1.26,<2.",
        "dependency on torch stays",
    ),
    "M116": Code(
        Severity.NOTE,
        "A text that is made at run time is executed; names of torch in it would not be converted.",
        "Nothing to do, unless the text names torch.",
        "text executed at run time",
    ),
    "M117": Code(
        Severity.WARNING,
        "The program replaces a function of torch; the converted layers do not look it up there.",
        "Give the layers what they need directly, or replace the function in the helper.",
        "replaced function of torch",
    ),
    # types
    "M120": Code(
        Severity.WARNING,
        "If the object is a tensor, the method is another one in MindSpore; the type of the object is not known.",
        "Annotate the variable, e.g. `x: torch.Tensor`, and convert again.",
        "method of an unknown object",
        LineStatus.UNKNOWN,
    ),
    "M121": Code(
        Severity.NOTE,
        "The type of the object is not known; a tensor takes the MindSpore form, anything else the call as it was.",
        "Nothing to do. Annotated, e.g. `x: torch.Tensor`, the line becomes the plain MindSpore form.",
        "question at run time",
    ),
    # modules
    "M202": Code(
        Severity.WARNING,
        "The class has a base whose origin is unknown, so it is not known whether it is a module.",
        "Convert the class by hand if it is a torch.nn.Module.",
        "base class of unknown origin",
        LineStatus.UNKNOWN,
    ),
    "M203": Code(
        Severity.WARNING,
        "MindSpore's Cell uses a member of this name itself; torch's Module does not have it.",
        "Give the method or attribute of the class another name.",
        "name of a member of Cell",
    ),
    # in-place
    "M301": Code(
        Severity.WARNING,
        "MindSpore's in-place methods leave the tensor unchanged on the CPU, and there is no name to assign to.",
        "Split the statement: compute the value, then assign it.",
        "in-place call without a name",
    ),
    "M302": Code(
        Severity.WARNING,
        "The tensor shares memory with another name; an assignment would not change the other one.",
        "Assign to the original, e.g. with an index.",
        "in-place change of shared memory",
    ),
    "M303": Code(
        Severity.NOTE,
        "copy_ changes the tensor itself, so the caller sees it; but slices and transposed tensors are copies.",
        "Where a caller passes such a view, let it assign the result.",
        "in-place change of a caller's tensor",
    ),
    "M304": Code(
        Severity.WARNING,
        "Writes through reshaped or transposed views lose their gradient; rows taken before a write do not change.",
        "Write into the original by index, take rows after the write, or compute a new tensor, e.g. with where.",
        "write through a view",
    ),
    "M305": Code(
        Severity.NOTE,
        "torch changes the caller's tensor as well; in MindSpore the name gets a new one. No call is visible here.",
        "Nothing to do, unless a caller uses its tensor afterwards: then write `x[()] = x + y`.",
        "augmented assignment to a caller's tensor",
    ),
    "M306": Code(
        Severity.WARNING,
        "The module overwrites its input, MindSpore's never does; here the input may be used again afterwards.",
        "Drop inplace=True if it is not; or convert with --unsafe, which drops it, and compare the module.",
        "module that works in place",
        safe=False,
    ),
    # training
    "M402": Code(
        Severity.NOTE,
        "The gradients are computed by a function made once, which runs eagerly until a compared run allows a graph.",
        "Nothing to do. To compile it, name a program in the recipes of --modules (docs/compiled-steps.md).",
        "gradients by a function",
    ),
    "M403": Code(
        Severity.NOTE,
        "The computation of the loss cannot be put into one function, so the operations are recorded as they run.",
        "Nothing to do. To compile the step, put the computation of the loss into one block before backward().",
        "gradients by a tape",
    ),
    "M404": Code(
        Severity.NOTE,
        "The model runs at every step of a generation, eagerly until a compared run allows a graph.",
        "Nothing to do. To compile it, name a program in the recipes of --modules (docs/compiled-steps.md).",
        "step of generation",
    ),
    "M405": Code(
        Severity.NOTE,
        "Every step of the generation has another shape or another number, and each would be a graph of its own.",
        "Nothing to do. For one graph, keep keys and values in buffers of fixed size and give positions as tensors.",
        "step of generation with changing shapes",
    ),
    # sharding
    "M701": Code(
        Severity.WARNING,
        "The layer was to be cut over ranks, and it is not proved that the ranks then compute what one process does.",
        "Nothing to do for correctness: every rank holds it whole. To cut it, rewrite what the message names.",
        "layer stays whole",
    ),
    "M702": Code(
        Severity.NOTE,
        "Between cut layers every rank has its own heads or features.",
        "Nothing to do, unless the program looks at these tensors as a whole.",
        "tensors of one rank",
    ),
    "M703": Code(
        Severity.WARNING,
        "With cut layers a rank holds pieces of tensors, and only ranks of a data parallel group are replicas.",
        "Call set_mesh with a layout that has dp and name its ranks here, or take another optimizer.",
        "needs whole tensors or replicas",
    ),
    # verification
    "M601": Code(
        Severity.WARNING,
        "The converted module cannot be imported.",
        "Install what the repository needs besides torch, which is shut out here on purpose; then work through the "
        "other findings of the file.",
        "module cannot be imported",
    ),
    "M602": Code(
        Severity.WARNING,
        "The converted module cannot be built or run as PyTorch builds and runs it.",
        "Look at the findings of the file and the line that the message names.",
        "module cannot be run",
    ),
    "M603": Code(
        Severity.WARNING,
        "The converted module runs, and computes something else than PyTorch.",
        "Start at the module that the message names as the first to differ.",
        "module differs from PyTorch",
    ),
}


def finding(code: str, message: str, *, file: str | None = None, line: int | None = None) -> Finding:
    """A finding of a known code."""
    entry = CODES[code]
    return Finding(code, entry.severity, message, entry.why, entry.fix, file=file, line=line)
