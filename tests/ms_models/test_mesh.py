"""Groups as computed, and what `from_environment` refuses before it opens communication."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from mappings.errors import UserError
from mappings.layout import AXES, ParallelLayout
from ms_models.parallel.mesh import Mesh

LAYOUTS = [
    ParallelLayout(tp=tp, cp=cp, dp=dp, pp=pp)
    for tp, cp, dp, pp in itertools.product((1, 2, 3), (1, 2), (1, 2), (1, 2))
]


def test_one_process_has_no_named_group() -> None:
    mesh = Mesh.single()
    group = mesh.group("tp")
    assert (group.name, group.ranks, group.size, group.index) == (None, (0,), 1, 0)
    assert mesh.coordinates == {"tp": 0, "cp": 0, "dp": 0, "pp": 0}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_groups_partition_the_world_and_agree_between_members(layout: ParallelLayout) -> None:
    meshes = [Mesh(layout, rank) for rank in range(layout.world_size)]
    for count in range(1, 5):
        for axes in itertools.combinations(AXES, count):
            groups = [mesh.group(*axes) for mesh in meshes]
            for rank, group in enumerate(groups):
                assert group.ranks[group.index] == rank
                assert all(groups[other].ranks == group.ranks for other in group.ranks)
                assert all(groups[other].name == group.name for other in group.ranks)
                assert (group.name is None) == (group.size == 1)


def test_an_axis_of_one_rank_changes_no_group() -> None:
    mesh = Mesh(ParallelLayout(tp=2, dp=4, ep=2), 3)
    assert mesh.group("dp", "cp") == mesh.group("dp") and mesh.group("edp", "cp") == mesh.group("edp")
    assert mesh.group("dp").ranks == (1, 3, 5, 7)
    assert mesh.group("ep").ranks == (1, 3) and mesh.group("edp").ranks == (3, 7)
    assert len({mesh.group(axes).name for axes in ("tp", "dp", "ep", "edp")}) == 4


def test_pairs_of_stages_and_blocks_of_ranks() -> None:
    layout = ParallelLayout(tp=4, pp=3)
    meshes = [Mesh(layout, rank) for rank in range(layout.world_size)]
    assert [meshes[1].block("tp", size).ranks for size in (1, 2, 4)] == [(1,), (0, 1), (0, 1, 2, 3)]
    assert meshes[6].pair(0) == replace(meshes[2].pair(0), index=1) and meshes[6].pair(0).ranks == (2, 6)
    assert meshes[10].ends().ranks == meshes[2].ends().ranks == (2, 10)
    assert len({meshes[6].pair(0).name, meshes[6].pair(1).name, meshes[10].ends().name}) == 3


def test_a_name_means_the_same_ranks_in_every_layout() -> None:
    members: dict[str, tuple[int, ...]] = {}
    for layout in LAYOUTS:
        for rank, axes in itertools.product(range(layout.world_size), itertools.combinations(AXES, 2)):
            group = Mesh(layout, rank).group(*axes)
            if group.name is not None and group.size < layout.world_size:
                assert members.setdefault(group.name, group.ranks) == group.ranks
    assert len(members) > 20


def test_processes_that_were_not_started_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MS_ROLE", raising=False)
    monkeypatch.delenv("RANK_TABLE_FILE", raising=False)
    with pytest.raises(UserError, match="tp=2 needs 2 processes; start them with msrun"):
        Mesh.from_environment(ParallelLayout(tp=2))
    monkeypatch.setenv("MS_WORKER_NUM", "4")
    with pytest.raises(UserError, match="one process is wanted, 4 were started"):
        Mesh.from_environment(ParallelLayout())
