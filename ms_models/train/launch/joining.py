"""The part of each machine but the first: joins, starts and stops its ranks as the first one says."""

from __future__ import annotations

from mappings.errors import UserError
from ms_models.train.launch.attempt import Local, run_attempt
from ms_models.train.launch.conducting import COULD_NOT_RUN, FAILED, shared_facts
from ms_models.train.launch.failure import Failure
from ms_models.train.launch.place import describe
from ms_models.train.launch.signals import Interrupted
from ms_models.train.launch.spoke import LostMaster, Spoke


def follow(local: Local) -> int:
    """Takes part to the end.

    Returns:
        What the first machine returns; 1 where it was lost and no restart is allowed.

    Raises:
        UserError: the first machine does not answer, refuses, or met a fault of the input.
    """
    launch, place, say = local.config.launch, local.place, local.say
    master = f"node 0 at {place.host}:{place.port}"
    used = 0
    while True:
        with Spoke(place, shared_facts(local.config), local.logs, launch.link_s) as spoke:
            say(f"node {place.node}: looking for {master}")
            spoke.join(launch.join_s, local.signals.check)
            say(f"node {place.node}: joined {master} with {describe(place.ranks)}")
            try:
                end = _attempts(local, spoke)
            except LostMaster as loss:
                say(f"failed: {loss}; every process was ended")
                end = None
            except Interrupted as interruption:
                spoke.report(Failure(f"interrupted by {interruption}", cause="interrupted", node=place.node))
                raise
        if end is not None:
            return end
        if used >= launch.restarts:
            return FAILED
        used += 1


def _attempts(local: Local, spoke: Spoke) -> int:
    while True:
        message = spoke.await_start(local.signals.check)
        if message["kind"] == "end":
            if message["exit_code"] == COULD_NOT_RUN:
                raise UserError(message["message"])
            return int(message["exit_code"])
        number = message["attempt"]
        local.say(f"node {local.place.node}: attempt {number}")
        failure, _ = run_attempt(local, spoke, number, message["arguments"], message["port"], lambda failure: None)
        if failure is None:
            continue
        if failure.cause == "lost" and failure.node == 0:
            raise LostMaster(f"node 0: {failure.message}")
        local.say(f"failed: {failure.who}: {failure.message}; every process was ended")
