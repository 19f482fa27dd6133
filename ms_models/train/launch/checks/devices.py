"""This machine has what the ranks need: an interpreter beside msrun, working versions, and a device each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mappings.errors import UserError
from ms_models.train.config import versions
from ms_models.train.launch.place import NodePlace

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
DEVICES = Path("/dev")
MINDSPORE = "2.10"


def check_versions(found: Mapping[str, str] | None = None) -> str:
    """The packages are those that the runner was measured with.

    Args:
        found: versions by name; those of this environment where not given.

    Raises:
        UserError: a package is missing or too new.
    """
    found = versions() if found is None else found
    if not found["mindspore"].startswith(f"{MINDSPORE}."):
        raise UserError(f"mindspore is {found['mindspore']}; the runner is measured with {MINDSPORE}: "
                        f"pip install 'mindspore=={MINDSPORE}.*'")  # fmt: skip
    if not found["numpy"].startswith("1."):
        raise UserError(f"numpy is {found['numpy']}; MindSpore {MINDSPORE} fails in the middle of a run under numpy 2: "
                        "pip install 'numpy>=1.26,<2'")  # fmt: skip
    return ", ".join(f"{name} {version}" for name, version in found.items())


def check_devices(place: NodePlace, environment: Mapping[str, str] = os.environ, devices: Path = DEVICES) -> str:
    """Each rank of this machine has an NPU, where there are NPUs at all.

    Args:
        place: of this machine.
        environment: variables of the launcher, which ranks inherit.
        devices: directory of device files.

    Raises:
        UserError: there are fewer than ranks.
    """
    visible, ranks = environment.get(VISIBLE), place.local_size
    if visible is not None:
        numbers = [part for part in visible.split(",") if part.strip()]
        if len(numbers) < ranks:
            raise UserError(
                f"{VISIBLE}={visible} shows {len(numbers)} devices to the {ranks} ranks of this machine; unset it or "
                "make the layout smaller"
            )
        return f"{_counted(len(numbers), 'visible device')} for {_counted(ranks, 'rank')}"
    present = _npus(devices)
    if not present:
        return f"no NPU: {ranks} ranks share the processor"
    if len(present) < ranks:
        raise UserError(f"{len(present)} NPUs ({devices}/davinci*) for the {ranks} ranks of this machine; make the "
                        "layout smaller or add machines (launch.nodes)")  # fmt: skip
    return f"{_counted(len(present), 'NPU')} for {_counted(ranks, 'rank')}"


def has_npu(devices: Path = DEVICES) -> bool:
    """Whether this machine has an NPU.

    Args:
        devices: directory of device files.
    """
    return bool(_npus(devices))


def _npus(devices: Path) -> list[Path]:
    return [path for path in devices.glob("davinci[0-9]*") if path.name.removeprefix("davinci").isdecimal()]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
