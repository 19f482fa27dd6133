"""Devices, events and settings where PyTorch needs an accelerator to compare with, and refusals."""

from __future__ import annotations

import subprocess
import sys
import time

import mindspore as ms
import numpy as np
import pytest

from ms_models.compat import amp, device, distributed, dtypes


def test_the_chosen_device_is_remembered() -> None:
    try:
        device.set_device(3)
        assert device.current_device() == 3
        device.set_device("cuda:1")
        assert device.current_device() == 1
        device.set_device(device.device("cuda"))
        assert device.current_device() == 0
    finally:
        device.set_device(0)


def test_events_measure_milliseconds_between_them() -> None:
    start, end = device.Event(enable_timing=True), device.Event(enable_timing=True)
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    time.sleep(0.02)
    end.record()
    assert start.elapsed_time(end) >= 20.0 and end.elapsed_time(start) <= -20.0


def test_there_is_no_name_of_an_absent_accelerator() -> None:
    with pytest.raises(RuntimeError, match="no accelerator"):
        device.device_name()


def test_only_float32_is_accepted_as_default_type() -> None:
    dtypes.set_default_dtype(ms.float32)
    with pytest.raises(TypeError, match="BFloat16"):
        dtypes.set_default_dtype(ms.bfloat16)


def test_switches_start_as_in_torch() -> None:
    # In a fresh process: the cases of tests/mappings set the switches of this one.
    program = (
        "import torch\nfrom ms_models.compat import settings\n"
        "print(settings.cudnn.benchmark == torch.backends.cudnn.benchmark,"
        " settings.matmul.allow_tf32 == torch.backends.cuda.matmul.allow_tf32)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_autocast_decorates() -> None:
    @amp.autocast()
    def double(x: ms.Tensor) -> ms.Tensor:
        return x * 2

    result = double(ms.Tensor(np.ones(2, np.float32)))
    assert result.dtype == ms.float32 and result.asnumpy().tolist() == [2.0, 2.0]


def test_scalers_refuse_what_torch_refuses() -> None:
    with pytest.raises(ValueError, match="growth factor"):
        amp.GradScaler(growth_factor=1.0)
    with pytest.raises(RuntimeError, match="disabled"):
        amp.GradScaler().load_state_dict({})


def test_collectives_need_a_group() -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        distributed.all_reduce(ms.Tensor(np.ones(2, np.float32)))
    with pytest.raises(ValueError, match="init_process_group"):
        distributed.get_rank()


def test_a_lone_process_is_no_group_of_four() -> None:
    with pytest.raises(ValueError, match="msrun --worker_num=4"):
        distributed.init_process_group("gloo", world_size=4, rank=0)
    with pytest.raises(RuntimeError, match="msrun --worker_num=2"):
        distributed.spawn(print, nprocs=2)
    seen: list[int] = []
    distributed.spawn(seen.append, nprocs=1)
    assert seen == [0]
