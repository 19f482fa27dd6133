"""Draws the histogram of the lengths of documents. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mappings.errors import UserError
from ms_models.data.lengths import EDGES
from ms_models.data.records import PreparedData


def plot_lengths(data: PreparedData, path: Path) -> None:
    """Writes the histogram to a file whose suffix says the format: .png, .svg or .pdf.

    Raises:
        UserError: matplotlib is missing, the suffix is unknown, or the data was prepared before lengths were kept.
    """
    lengths = data.documents.get("lengths")
    if not lengths:
        raise UserError("this data was prepared before the lengths of documents were kept; prepare it again")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("a histogram needs matplotlib: pip install 'msmigrate[viz]'") from error
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"{path}: the suffix of a histogram must be .png, .svg or .pdf")
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    edges = [int(edge) for edge in lengths["bins"]]
    widths = [EDGES[EDGES.index(edge) + 1] - edge for edge in edges]
    axes.bar(edges, list(lengths["bins"].values()), widths, align="edge", edgecolor="white", linewidth=0.5)
    axes.axvline(data.seq_length, color="black", linestyle="--", linewidth=1)
    axes.text(data.seq_length, 0.98, f" a row: {data.seq_length}", transform=axes.get_xaxis_transform(), va="top")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens of a document")
    axes.set_ylabel("documents")
    axes.set_title(f"{lengths['documents']:,} documents, {lengths['tokens']:,} tokens, mean {lengths['mean']:,}")
    try:
        figure.savefig(path, **_undated(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error


def _undated(path: Path) -> dict[str, Any]:
    """The same data gives the same file."""
    return {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
