"""Native MindSpore models and the runner that trains them. Imports neither torch nor `migrate`."""

from typing import Any

__all__ = ["AutoModelForCausalLM", "AutoModelForMaskedLM"]


def __getattr__(name: str) -> Any:
    # Importing MindSpore takes seconds; parts of this package (run configs, launching) do without it.
    if name == "AutoModelForCausalLM":
        from ms_models.auto import AutoModelForCausalLM

        return AutoModelForCausalLM
    if name == "AutoModelForMaskedLM":
        from ms_models.auto_masked_lm import AutoModelForMaskedLM

        return AutoModelForMaskedLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
