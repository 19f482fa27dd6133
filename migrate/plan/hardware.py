"""`Hardware`: speeds of devices and links. Presets are assumptions from data sheets; measure, and give your own."""

from __future__ import annotations

from dataclasses import dataclass

from mappings.errors import UserError


@dataclass(frozen=True)
class Hardware:
    """Of one device."""

    name: str
    memory_gib: float
    peak_tflops: float
    """Dense 16-bit products, TFLOP/s."""
    node_gbytes: float
    """Bandwidth to the other devices of a node, in one direction, GB/s."""
    network_gbytes: float
    """Bandwidth to other nodes, GB/s."""
    source: str
    efficiency: float = 0.5
    """Share of the peak that matrix products of a training step reach."""
    link_efficiency: float = 0.8
    """Share of a bandwidth that a ring reaches."""


PRESETS = {
    one.name: one
    for one in (
        Hardware("ascend-910b", 64, 313, 196, 25,
                 "assumption: server Atlas 800T A2 with 8 devices, 2.5 PFLOP/s in fp16 in all, HCCS 392 GB/s in both "
                 "directions together, 200 Gbit/s RoCE per device (Huawei's product pages)"),
        Hardware("a100", 80, 312, 300, 25,
                 "NVIDIA A100 data sheet: 312 TFLOP/s bf16, NVLink 600 GB/s in both directions; HDR InfiniBand "
                 "200 Gbit/s per device (arXiv 2104.04473, section 5)"),
        Hardware("h100", 80, 989, 450, 50,
                 "NVIDIA H100 SXM data sheet: 989 TFLOP/s bf16, NVLink 900 GB/s in both directions; 400 Gbit/s per "
                 "device (arXiv 2407.21783, section 3.3.1)"),
        Hardware("h800", 80, 989, 200, 50,
                 "arXiv 2412.19437 and its companion on hardware (arXiv 2505.09343): as H100, NVLink cut to 400 GB/s "
                 "in both directions; 400 Gbit/s per device"),
    )
}  # fmt: skip


def hardware(name: str) -> Hardware:
    """A preset.

    Raises:
        UserError: there is none of this name.
    """
    if name not in PRESETS:
        raise UserError(f"plan: unknown hardware {name!r}; known are {', '.join(PRESETS)}")
    return PRESETS[name]
