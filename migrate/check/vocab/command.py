"""`msmigrate vocab`: as many embedding rows as the tokenizer needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config, read_json, read_tensors
from migrate.check.tokenizer import parse_tokenizer
from migrate.check.vocab.new_rows import NewRows
from migrate.check.vocab.resizing import changes, vocabulary_field, write
from migrate.progress import ByteCount, Tracker, quiet
from migrate.report import Report, Stage, Verdict


def vocab(
    model_dir: Path,
    out: Path,
    *,
    rows: int | None = None,
    multiple: int = 1,
    new_rows: NewRows | None = None,
    track: Tracker = quiet,
) -> Report:
    """Copies a model directory with another number of vocabulary rows, and verifies the copy.

    Embedding, output head and biases of the vocabulary get the rows, in the dtype they have; `config.json` and the
    index follow. Everything else keeps its bytes.

    Args:
        model_dir: Hugging Face directory.
        out: directory to make.
        rows: of the vocabulary; what `tokenizer.json` needs where not given.
        multiple: the number is raised to a multiple of this.
        new_rows: how rows are made.
        track: progress.

    Raises:
        UserError: rows would be removed that a token or a special id uses, nothing would change, or the directory is
            no readable checkpoint.
    """
    new_rows = new_rows or NewRows()
    config = read_config(model_dir)
    family = family_for_config(config, str(model_dir / "config.json"))
    tensors = read_tensors(model_dir)
    field = vocabulary_field(family, config)
    highest = _highest_id(model_dir)
    if rows is None:
        if highest < 0:
            raise UserError(f"{model_dir}: no tokenizer.json that says how many rows there must be; give --rows")
        rows = highest + 1
    rows = -(-rows // multiple) * multiple
    if rows <= highest:
        raise UserError(f"{model_dir}: tokenizer.json uses id {highest}, so {rows} rows are too few")
    special = {name: value for name, value in config.items() if name.endswith("_token_id")}
    for name, value in special.items():
        for token in value if isinstance(value, list) else [value]:
            if type(token) is int and token >= rows:
                raise UserError(f"config.json: {name} is {token}, so {rows} rows are too few")
    if rows == config[field]:
        raise UserError(f"{model_dir}: has {rows} rows already")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty; choose another directory or remove it")
    new, changed = changes(family, config, tensors, rows)
    total = sum(entry.nbytes for entry in tensors.values())
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    left = out.with_name(f".{out.name}.partial")  # of a run that was killed, and goes
    free = shutil.disk_usage(there).free + sum(path.stat().st_size for path in left.glob("*"))
    if free < total + sum(change.rows * change.row_bytes for change in changed.values()):
        raise UserError(f"{out}: {free / 1e9:.2f} GB are free, the copy needs more than {total / 1e9:.2f} GB")
    with track("copying", ByteCount(total)) as advance:
        compared = write(model_dir, tensors, out, new, changed, new_rows, advance)
    report = Report("vocab", str(model_dir))
    more = rows - config[field]
    what = f"{more} rows added ({new_rows.kind})" if more > 0 else f"{-more} rows removed"
    report.stages.append(Stage("vocabulary", Verdict.PASS, f"{field} {config[field]} -> {rows}: {what}", len(changed)))
    report.stages.append(Stage("verify", Verdict.PASS, f"{compared} tensors keep their bytes", compared))
    report.facts = {"out": str(out), "rows": rows, "tensors": sorted(changed)}
    return report


def _highest_id(model_dir: Path) -> int:
    path = model_dir / "tokenizer.json"
    return parse_tokenizer(read_json(path)).highest_id if path.is_file() else -1
