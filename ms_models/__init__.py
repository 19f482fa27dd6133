"""Native MindSpore models and the runner that trains them. Imports neither torch nor `migrate`."""

from typing import Any

__all__ = ["AutoModelForCausalLM"]


def __getattr__(name: str) -> Any:
    # Importing MindSpore takes seconds; parts of this package (run configs, launching) do without it.
    if name == "AutoModelForCausalLM":
        from ms_models.auto import AutoModelForCausalLM

        return AutoModelForCausalLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
