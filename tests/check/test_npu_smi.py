"""The driver's table as data; versions of toolkits; which versions belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.doctor import matrix
from migrate.check.doctor.cann import cann_version
from migrate.check.doctor.npu_smi import Device, DeviceProcess, parse_npu_smi
from tests.check.npu_smi_text import npu_smi_text


def test_devices_are_read_with_health_memory_and_temperature() -> None:
    text = npu_smi_text(health={1: "Alarm"}, temperature=38, used=3401, total=32768, name="910B4", driver="24.1.rc3")
    found = parse_npu_smi(text)
    assert found.driver == "24.1.rc3"
    assert found.devices == [
        Device(0, 0, "910B4", "OK", 38, 3401, 32768),
        Device(1, 0, "910B4", "Alarm", 38, 3401, 32768),
    ]
    assert found.processes == []


@pytest.mark.parametrize("wide", [0, 18])
def test_several_chips_of_an_npu_and_wider_tables(wide: int) -> None:
    found = parse_npu_smi(npu_smi_text(count=2, chips=2, name="Ascend910", wide=wide))
    assert [(one.npu, one.chip, one.temperature) for one in found.devices] == [
        (0, 0, 41), (0, 1, 41), (1, 0, 41), (1, 1, 41),
    ]  # fmt: skip
    assert [one.label for one in found.devices[:2]] == ["NPU 0", "NPU 0 chip 1"]


def test_processes_are_read() -> None:
    found = parse_npu_smi(npu_smi_text(processes=[(1, 0, 4711, "python3.11", 812), (1, 0, 4712, "my worker", 90)]))
    assert found.processes == [
        DeviceProcess(1, 0, 4711, "python3.11", 812),
        DeviceProcess(1, 0, 4712, "my worker", 90),
    ]


def test_memory_of_cards_without_hbm_is_their_ddr() -> None:
    text = npu_smi_text(count=1, name="310P3").replace(
        "0    / 0          3379 / 65536", "1200 / 21527      0    / 0    "
    )
    (device,) = parse_npu_smi(text).devices
    assert (device.memory_used, device.memory_total) == (1200, 21527)


@pytest.mark.parametrize(
    "text", ["", "dcmi module initialize failed. ret is -8005\n", "| a | b | c |\n| 1 | 2 | 3 |\n"]
)
def test_other_text_has_no_devices(text: str) -> None:
    assert parse_npu_smi(text).devices == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("compiler/version.info", "Version=8.5.0\nversion_dir=8.5.0\n", "8.5.0"),
        ("runtime/version.info", "# of the runtime\nVersion=8.3.RC1\n", "8.3.RC1"),
        ("aarch64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=8.2.RC1\n", "8.2.RC1"),
        ("version.cfg", "runtime_running_version=[7.1:8.3.RC1]\nversion=[7.1:8.3.RC1]\n", None),
    ],
)
def test_the_version_of_a_toolkit(file: str, text: str, expected: str | None, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert cann_version(tmp_path) == (None if expected is None else (expected, path))


def test_versions_that_belong_together() -> None:
    assert matrix.cann_of("2.10.0") == ["8.2", "8.3", "8.5", "9.0", "9.1"]
    assert matrix.cann_of("2.3.0") is None
    assert matrix.driver_of("8.3.RC1") == "25.3"
    assert matrix.driver_of("9.9.0") is None
    assert matrix.is_older("24.1.rc3", "25.2")
    assert not matrix.is_older("25.10.0", "25.2")
    # Every toolkit of a known driver is one that MindSpore accepts.
    assert all(matrix.driver_of(cann) for cann in ("8.2", "8.3", "8.5", "9.0"))
