"""Text in the format of `npu-smi info`, made up: no machine said this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def npu_smi_text(
    *,
    count: int = 2,
    chips: int = 1,
    driver: str = "25.5.0",
    name: str = "910B3",
    health: Mapping[int, str] | None = None,
    temperature: int = 41,
    used: int = 3379,
    total: int = 65536,
    processes: Sequence[tuple[int, int, int, str, int]] = (),
    wide: int = 0,
) -> str:
    """The two tables.

    Args:
        count: NPUs.
        chips: of each.
        driver: version.
        name: of the chips.
        health: of an NPU by number, where it is not OK.
        temperature: of each chip.
        used: MiB of each.
        total: MiB of each.
        processes: NPU, chip, process number, name, MiB.
        wide: further blanks in the last column, as newer drivers have.
    """
    gap = " " * wide
    line = f"+{'-' * (96 + wide)}+"
    rule = f"+{'=' * 27}+{'=' * 15}+{'=' * (52 + wide)}+"
    lines = [line, f"| {f'npu-smi {driver}':32} Version: {driver:53}{gap}|", rule.replace("=", "-")]
    lines += [
        f"| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page){gap}|"
    ]
    places = "Chip  Phy-ID" if chips > 1 else "Chip"
    lines += [f"| {places:26}| Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        {gap}|", rule]
    for npu in range(count):
        for chip in range(chips):
            power = "97.5" if chip == 0 else "-"
            state = (health or {}).get(npu, "OK")
            physical = f"{chip:<6}{npu * chips + chip}" if chips > 1 else f"{chip}"
            hbm = f"{used:<5}/ {total}"
            lines.append(f"| {npu:<6}{name:20}| {state:14}| {power:12}{temperature:<18}0    / 0             {gap}|")
            lines.append(f"| {physical:26}| 0000:C{npu}:00.0  | 0           0    / 0          {hbm:21}{gap}|")
            lines.append(rule if chip == chips - 1 else line)
    lines.append("+---------------------------+---------------+----------------------------------------------------+")
    lines.append("| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |")
    lines.append(rule)
    for npu in range(count):
        mine = [one for one in processes if one[0] == npu]
        for _, chip, pid, program, memory in mine:
            lines.append(f"| {npu:<8}{chip:<18}| {pid:<14}| {program:25}| {memory:<24}|")
        if not mine:
            lines.append(f"| No running processes found in NPU {npu:<61}|")
        lines.append(rule)
    return "\n".join(lines) + "\n"
