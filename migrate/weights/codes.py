"""The one table of finding codes of `msmigrate weights`, and the maker of findings from it."""

from __future__ import annotations

from dataclasses import dataclass

from migrate.report import Finding, Severity


@dataclass(frozen=True)
class Code:
    """What a code means to a person."""

    severity: Severity
    why: str
    fix: str


CODES = {
    "W001": Code(
        Severity.ERROR,
        "A parameter that config.json implies would be left without weights.",
        "Complete the checkpoint, or correct config.json (layer count, biases, tie_word_embeddings).",
    ),
    "W002": Code(
        Severity.ERROR,
        "A tensor that no parameter takes would be dropped: the checkpoint and config.json describe different models.",
        "Check model_type, the layer count and the bias fields of config.json, or remove the tensor from the source.",
    ),
    "W003": Code(
        Severity.ERROR,
        "The stored shape is not the one config.json implies, so slicing would cut in the wrong place.",
        "Correct the dimensions in config.json; the checkpoint decides what is right.",
    ),
    "W004": Code(
        Severity.ERROR,
        "Quantised and integer weights need their scales to be unpacked; only floating-point weights are moved.",
        "Start from the unquantised checkpoint.",
    ),
    "W005": Code(
        Severity.ERROR,
        "config.json ties the two tensors, but their bytes differ: one of them would be lost.",
        "Set tie_word_embeddings to false, or save the checkpoint again with tied weights.",
    ),
    "W006": Code(
        Severity.NOTE,
        "The tensor is no parameter (a buffer of an older export that the model recomputes), so it is left out.",
        "Nothing to do.",
    ),
    "W007": Code(
        Severity.NOTE,
        "Tensors of several dtypes are kept as they are; a model that loads them may cast.",
        "Nothing to do if this is meant.",
    ),
    "W008": Code(
        Severity.NOTE,
        "Loaders that follow config.json cast the weights to its dtype.",
        "Change the dtype in config.json if the stored one is wanted.",
    ),
    "W009": Code(
        Severity.NOTE,
        "Only weights, configuration and tokenizer files are carried over.",
        "Copy the file by hand if it is needed.",
    ),
    "W010": Code(
        Severity.ERROR,
        "The manifest records the file, so the checkpoint is incomplete.",
        "Copy the checkpoint again or convert again.",
    ),
    "W011": Code(
        Severity.ERROR,
        "The file is not the one that was written: it was damaged or changed afterwards.",
        "Copy the checkpoint again or convert again.",
    ),
    "W012": Code(
        Severity.ERROR,
        "A file that breaks the safetensors format cannot be trusted in any part.",
        "Copy the file again or convert again.",
    ),
    "W013": Code(
        Severity.ERROR,
        "The bytes are not those that the source gives: the checkpoint is a different model.",
        "Convert again from this source, or verify against the right one.",
    ),
    "W014": Code(
        Severity.ERROR,
        "Copies of one parameter in several ranks must be equal; a run in which they drift apart computes nonsense.",
        "Find out which rank is right (gradients of replicated parameters must be reduced over tp), then export again.",
    ),
    "W015": Code(
        Severity.WARNING,
        "NaN or Inf in a weight makes every output NaN sooner or later.",
        "Go back to a checkpoint without them.",
    ),
    "W016": Code(
        Severity.WARNING,
        "The manifest does not know the file, so nothing vouches for it.",
        "Remove it, or convert again.",
    ),
    "W017": Code(
        Severity.ERROR,
        "The pieces of one parameter must have one dtype.",
        "Write the checkpoint again with one dtype per parameter.",
    ),
    "W018": Code(
        Severity.NOTE,
        "A conversion to this output was killed, or is running now; its temporary directory takes up space.",
        "Remove the directory if no other conversion is running.",
    ),
    "W019": Code(
        Severity.ERROR,
        "A tensor that shall be written needs elements that the source does not hold.",
        "Complete the source, or choose an output without the tensor.",
    ),
    "W020": Code(
        Severity.ERROR,
        "Elements of a parameter would be lost: no output tensor holds them.",
        "Choose a layout that holds the whole parameter.",
    ),
    "W021": Code(
        Severity.NOTE,
        "Rows behind the vocabulary are padding that a parallel run wanted; they are no part of the model.",
        "Nothing to do if vocab_size in config.json is right.",
    ),
    "W022": Code(
        Severity.WARNING,
        "The numbers are equal, but a run from one checkpoint computes in another type than from the other.",
        "Nothing to do if the change of type was meant.",
    ),
    "W023": Code(
        Severity.NOTE,
        "The output has no place for optimizer state and counters, or was asked to leave them out.",
        "Use reshard, or a container that holds them, to go on with the training.",
    ),
    "W024": Code(
        Severity.NOTE,
        "config.json describes what is written: a quantisation that was undone, another dtype.",
        "Nothing to do.",
    ),
    "W025": Code(
        Severity.NOTE,
        "The source knows the files of its original, but those hold tensors under other names or packed otherwise.",
        "Choose the spelling of the original if its very files are wanted; low-precision forms are not written.",
    ),
    "W026": Code(
        Severity.ERROR,
        "Padding is dropped; what a run trained or initialised in rows behind the vocabulary would be lost with it.",
        "Correct vocab_size in config.json if the rows are tokens; allow the tensor (--allow) if they are not.",
    ),
    "W027": Code(
        Severity.NOTE,
        "The manifest knows the small file as another one; it is taken as it is now.",
        "Nothing to do if somebody meant to change it.",
    ),
}  # fmt: skip


def finding(
    code: str, message: str, *, file: str | None = None, tensor: str | None = None, field: str | None = None
) -> Finding:
    """A finding with the severity and advice of its code."""
    entry = CODES[code]
    return Finding(code, entry.severity, message, entry.why, entry.fix, file=file, tensor=tensor, field=field)
