"""`msmigrate doctor`: versions, one computation, msrun, devices and a collective, before anything relies on them."""

from __future__ import annotations

from migrate.check.codes import name_rules
from migrate.check.doctor import accelerator, launching, operation, rank_environment, resources, versions
from migrate.check.doctor.machine import Machine
from migrate.check.doctor.stages import add_stage
from migrate.report import Report, Stage, Verdict

HOST_QUESTIONS = 6
ENVIRONMENT_QUESTIONS = 5


def doctor(*, collective: bool = False, machine: Machine | None = None) -> Report:
    """Judges the machine. MindSpore is started in a child process only.

    Args:
        collective: also launch two ranks and all-reduce between them (20-30 s).
        machine: what to examine; this one by default.
    """
    machine = machine or Machine()
    report = Report("doctor", machine.python.parent.parent.name, facts=versions.facts(machine))
    add_stage(report, "system", versions.system(machine), 2)
    add_stage(report, "packages", versions.packages(machine), len(versions.PACKAGES))
    add_stage(report, "host", resources.resources(machine, report.facts), HOST_QUESTIONS)
    if machine.version("mindspore") is None:
        report.stages.append(Stage("minimal computation", Verdict.SKIPPED, "MindSpore is not installed"))
    else:
        add_stage(report, "minimal computation", operation.operation(machine), len(operation.EXPECTED))
    add_stage(report, "msrun", launching.msrun(machine), 2)
    add_stage(report, "environment", rank_environment.rank_environment(machine), ENVIRONMENT_QUESTIONS)
    if accelerator.is_present(machine):
        add_stage(report, "accelerator", accelerator.accelerator(machine, report.facts), 6)
    else:
        report.stages.append(Stage("accelerator", Verdict.SKIPPED, "neither npu-smi nor CANN: this is a CPU machine"))
    if not collective:
        report.stages.append(Stage("collective", Verdict.SKIPPED, "not asked for (--collective)"))
    elif machine.beside_python("msrun") is None:
        report.stages.append(Stage("collective", Verdict.COULD_NOT_RUN, "there is no msrun to start ranks with"))
    else:
        add_stage(report, "collective", launching.collective(machine), launching.RANKS)
    name_rules(report)
    return report
