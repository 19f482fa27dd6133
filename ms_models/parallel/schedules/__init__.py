"""Pipeline schedules as data: pure Python, checked without any process."""

from mappings.layout import ParallelLayout
from ms_models.parallel.schedules.actions import Schedule
from ms_models.parallel.schedules.orders import ORDERS, check_sizes
from ms_models.parallel.schedules.placement import place_transfers
from ms_models.parallel.schedules.running import Transport


def build_schedule(name: str, layout: ParallelLayout, micro_batches: int, transport: Transport) -> Schedule:
    """The table of a schedule for one training step.

    Args:
        name: one of `ORDERS`.
        layout: its pp and vpp count.
        micro_batches: of one replica, in one step.
        transport: how tensors will cross between stages; decides where sends and receives stand.

    Raises:
        UserError: the schedule does not take these sizes; names some that fit.
    """
    check_sizes(name, layout, micro_batches)
    pp, vpp = layout.pp, layout.vpp
    stages = tuple(ORDERS[name](pp, vpp, micro_batches, stage) for stage in range(pp))
    return place_transfers(Schedule(name, pp, vpp, micro_batches, stages), transport)
