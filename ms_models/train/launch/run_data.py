"""The data of a run: prepared directories as they are, or text that is prepared into the run's own directory."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mappings.errors import UserError
from ms_models.data import records
from ms_models.data.blend import described
from ms_models.data.prepare import Tracker, prepare
from ms_models.data.records import PreparedData
from ms_models.data.tokenization import read_tokenizer
from ms_models.train.config import RunConfig

PROGRESS_INTERVAL_S = 5.0


def data_of_run(
    config: RunConfig, model: Path, check_length: Callable[[int], None], dry_run: bool, say: Callable[[str], None]
) -> PreparedData | None:
    """The description of a run's data, of a blend as one; made here if the configuration names text.

    Args:
        config: of the run.
        model: directory whose tokenizer is taken where the configuration names none.
        check_length: refuses a sequence length before text is prepared to it.
        dry_run: prepare nothing.
        say: receives what happens.

    Returns:
        None in a dry run whose data is yet to be made.

    Raises:
        UserError: there is no such data, its parts do not fit together, or a run that is resumed had other data.
    """
    directory, data = config.data_directory, config.data
    if not data.text:
        return described(data.parts(directory))
    recipe = data.recipe()
    check_length(recipe.seq_length)
    tokenizer = Path(data.tokenizer) if data.tokenizer is not None else model
    facts = read_tokenizer(tokenizer)
    if (directory / records.NAME).is_file():
        found = PreparedData.read(directory)
        changed = recipe.differences(found.request)
        if found.tokenizer["sha256"] != facts.sha256:
            changed.append("the tokenizer is another one")
        if not changed:
            return found
        if config.checkpoint.is_resumed:
            raise UserError(
                f"{directory}: was prepared with other settings than the run's data section ({'; '.join(changed)}); "
                "restore those"
            )
        if not dry_run:
            shutil.rmtree(directory)
    if dry_run:
        say(f"data: would be prepared from {', '.join(data.text)}")
        return None
    say(f"data: preparing {', '.join(data.text)}")
    prepare(recipe, tokenizer, directory, processes=data.processes, track=_tracker(say), say=say)
    return PreparedData.read(directory)


def _tracker(say: Callable[[str], None]) -> Tracker:
    @contextmanager
    def track(title: str, total: int) -> Iterator[Callable[[int], None]]:
        done, last = 0, time.monotonic()

        def advance(amount: int) -> None:
            nonlocal done, last
            done += amount
            if time.monotonic() - last >= PROGRESS_INTERVAL_S:
                last = time.monotonic()
                say(f"{title}: {100 * done / max(total, 1):.0f}%")

        yield advance

    return track
