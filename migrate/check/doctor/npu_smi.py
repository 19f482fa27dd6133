"""`npu-smi info`: the table that the Ascend driver prints, as data.

Two lines describe a chip, of three cells each: NPU, name, health, power, temperature; then chip (and its physical
number where an NPU has several chips), bus, use, memory. A second table lists processes. Widths differ between drivers,
so cells are told apart by their borders alone. Cards with HBM report it last; those with DDR have no HBM or none of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

VERSION = re.compile(r"\bVersion:\s*(\S+)", re.IGNORECASE)
USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")
OK = "OK"


@dataclass(frozen=True)
class Device:
    """One chip."""

    npu: int
    chip: int
    name: str
    health: str
    """`OK`, or what the driver calls it otherwise: Warning, Alarm, Critical, UNKNOWN."""
    temperature: int | None
    """Degrees Celsius."""
    memory_used: int
    """MiB of the device's own memory."""
    memory_total: int

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"NPU {self.npu}" + (f" chip {self.chip}" if self.chip else "")


@dataclass(frozen=True)
class DeviceProcess:
    """A process that has memory of a chip."""

    npu: int
    chip: int
    pid: int
    name: str
    memory: int | None
    """MiB."""


@dataclass(frozen=True)
class NpuSmi:
    """What the driver says about its devices."""

    driver: str | None
    """Version of the driver package."""
    devices: list[Device] = field(default_factory=list)
    processes: list[DeviceProcess] = field(default_factory=list)


def parse_npu_smi(text: str) -> NpuSmi:
    """Reads the output of `npu-smi info`; lines that are no rows of its tables are passed over."""
    version = VERSION.search(text)
    devices: list[Device] = []
    processes: list[DeviceProcess] = []
    first: list[str] | None = None
    for cells in _rows(text):
        if len(cells) == 4 and (process := _process(cells)) is not None:
            processes.append(process)
        elif len(cells) == 3 and first is None and _numbers(cells[0]):
            first = cells
        elif len(cells) == 3 and first is not None:
            if (device := _device(first, cells)) is not None:
                devices.append(device)
            first = None
        else:
            first = None
    return NpuSmi(None if version is None else version[1], devices, processes)


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("|") and line.endswith("|"):
            yield [cell.strip() for cell in line[1:-1].split("|")]


def _device(first: list[str], second: list[str]) -> Device | None:
    numbers, places = first[0].split(), second[0].split()
    if len(numbers) < 2 or not places or not places[0].isdecimal():
        return None
    values = first[2].split()
    usages = [(int(used), int(total)) for used, total in USAGE.findall(second[2])]
    if not usages:
        return None
    # The device's own memory is the last one that exists: HBM, else DDR.
    used, total = next((one for one in reversed(usages) if one[1]), usages[-1])
    hot = values[1] if len(values) > 1 else ""
    temperature = int(hot) if hot.isdecimal() else None
    return Device(int(numbers[0]), int(places[0]), numbers[1], first[1], temperature, used, total)


def _process(cells: list[str]) -> DeviceProcess | None:
    places = _numbers(cells[0])
    if not places or not cells[1].isdecimal():
        return None
    memory = int(cells[3]) if cells[3].isdecimal() else None
    return DeviceProcess(places[0], places[1] if len(places) > 1 else 0, int(cells[1]), cells[2], memory)


def _numbers(cell: str) -> list[int]:
    """The numbers that a cell begins with."""
    result = []
    for part in cell.split():
        if not part.isdecimal():
            break
        result.append(int(part))
    return result
