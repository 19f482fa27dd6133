"""Options of `msmigrate weights` that belong together, and what they become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from migrate.commands.options import Json, ReportFile, finish
from migrate.commands.weights_options import (
    Allow,
    AsCkpt,
    Budget,
    Config,
    Container,
    Crc,
    Dp,
    DryRun,
    Dtype,
    Ending,
    Ep,
    Epoch,
    FamilyName,
    Force,
    Key,
    Mindformers,
    Multiple,
    Pp,
    RedundancyRemoved,
    RemoveRedundancy,
    Resume,
    ShardSize,
    Spelled,
    Spelling,
    Step,
    Strategies,
    Threads,
    To,
    ToStrategy,
    Tp,
    Vpp,
    WeightsOnly,
    Zero,
)

if TYPE_CHECKING:
    from mappings.layout import ParallelLayout
    from migrate.report import Report
    from migrate.weights.destinations import Destination
    from migrate.weights.opening import Hints


@dataclass(frozen=True)
class Described:
    """What a source does not say by itself."""

    container: Container = None
    config: Config = None
    from_spelling: Spelled = None
    allow: Allow = None
    strategy: Strategies = None

    def hints(self) -> Hints:
        """As the readers take it."""
        from migrate.weights.opening import Hints

        more, allow = self._more(), tuple(self.allow or ())
        return Hints(
            self.container, config=self.config, spelling=self.from_spelling, strategy=self.strategy, allow=allow, **more
        )

    def _more(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class DescribedModel(Described):
    """And of which family it is."""

    family: FamilyName = None

    def _more(self) -> dict[str, Any]:
        return {"family": self.family}


@dataclass(frozen=True)
class DescribedFiles(DescribedModel):
    """And where in its files things are."""

    key: Key = None
    ending: Ending = None
    redundancy_removed: RedundancyRemoved = False

    def _more(self) -> dict[str, Any]:
        files = {"key": self.key, "ending": self.ending, "redundancy_removed": self.redundancy_removed}
        return {**super()._more(), **files}


@dataclass(frozen=True)
class Layout:
    """The parallel layout to write."""

    tp: Tp = 1
    pp: Pp = 1
    vpp: Vpp = 1
    dp: Dp = 1
    ep: Ep = 1
    zero: Zero = 0
    vocab_multiple: Multiple = 1

    def parallel(self) -> ParallelLayout:
        """As the rest of the tool knows it."""
        from mappings.layout import ParallelLayout

        return ParallelLayout(**vars(self))


@dataclass(frozen=True)
class Written:
    """What `convert` writes, beside the layout."""

    to: To = "sharded"
    spelling: Spelling = "hf"
    dtype: Dtype = None
    weights_only: WeightsOnly = False
    max_shard_size: ShardSize = None
    to_strategy: ToStrategy = None
    crc: Crc = False
    as_ckpt: AsCkpt = False
    remove_redundancy: RemoveRedundancy = False
    mindformers: Mindformers = None
    epoch: Epoch = 1
    step: Step = 0

    def destination(self, layout: ParallelLayout) -> Destination:
        """As the writers take it."""
        from migrate.weights.destinations import Destination

        return Destination(
            self.to,
            layout,
            self.spelling,
            self.to_strategy,
            self.max_shard_size,
            self.crc,
            self.as_ckpt,
            self.remove_redundancy,
            self.mindformers,
            self.epoch,
            self.step,
        )


@dataclass(frozen=True)
class Work:
    """How the work is done."""

    memory_budget: Budget = 1024
    threads: Threads = None
    resume: Resume = False
    force: Force = False

    def options(self) -> dict[str, Any]:
        """As arguments of the commands' bodies."""
        from migrate.progress import shown

        options = {"memory_budget": self.memory_budget << 20, "force": self.force, "resume": self.resume}
        return {**options, "track": shown, **({} if self.threads is None else {"threads": self.threads})}


@dataclass(frozen=True)
class PlannedWork(Work):
    """And whether it is."""

    dry_run: DryRun = False

    def options(self) -> dict[str, Any]:
        """See `Work`."""
        return {**super().options(), **({"dry_run": True} if self.dry_run else {})}


@dataclass(frozen=True)
class Shown:
    """Where the report goes."""

    json: Json = False
    report: ReportFile = None

    def finish(self, report: Report, *, rows: bool = False) -> None:
        """Shows it and ends with its exit code."""
        finish(report, self.json, self.report, rows=rows)
