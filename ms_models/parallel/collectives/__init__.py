"""Communication between ranks: the only package that touches communication operators.

MindSpore's CPU backend is complete for one collective only, the sum-AllReduce of fp32 and fp16. There, everything else
is built from it, exactly: the parts a rank does not hold are filled with -0.0, the one value whose addition changes no
float (x + -0.0 is x for every x, either zero included). On Ascend the native operators are used where they save
traffic. Both ways have the same gradient, so a model does not know which it runs on.

| Cell | forward | backward |
|---|---|---|
| `AllReduce` | sum | sum |
| `CopyToGroup` | nothing | sum |
| `ReduceFromGroup` | sum | nothing |
| `GatherFromGroup` | concatenate | own slice (what follows is replicated) |
| `GatherForSharded` | concatenate | sum, own slice (what follows is cut over the same ranks) |
| `ReduceScatterToGroup` | sum, own slice | concatenate |
| `AllToAll` | block j of a tensor goes to rank j | the reverse |
| `Shift` | a tensor goes to the rank `steps` further | the reverse |
| `Broadcast`, `Transfer` | one member's tensor | none |

Each collective is a Cell that a layer makes once; the function of the same meaning is for code that holds no Cell.
A group of one is the identity everywhere. All take tensors of any shape in fp32, fp16, bf16, int32 or int64. Integers
are carried exactly; fp64, booleans and other integers are refused with a TypeError: cast them first.

All members must make their calls in one order, or tensors that do not belong together are added up. PyNative calls
in program order. Under `ms.jit` only data decide: the compiled functions of ranks that are built alike come out alike,
but where ranks differ, calls that do not depend on each other have to be tied together with `ops.depend`.

What was run: the AllReduce-only way of all of them, and the native AllGather and Broadcast in the world group, on CPU.
ReduceScatter and AlltoAllV have no CPU kernel: how they are called follows their signatures and documentation in
MindSpore 2.10, and tests run that code with stand-ins that do what the documentation says.
"""

from ms_models.parallel.collectives.all_reduce import AllReduce, CopyToGroup, ReduceFromGroup
from ms_models.parallel.collectives.device import has_native_collectives
from ms_models.parallel.collectives.exchange import AllToAll, Shift
from ms_models.parallel.collectives.functions import (
    all_reduce,
    all_to_all,
    broadcast,
    copy_to_group,
    forget_cells,
    gather_for_sharded,
    gather_from_group,
    reduce_from_group,
    reduce_scatter_to_group,
    shift,
    transfer,
)
from ms_models.parallel.collectives.gather import GatherForSharded, GatherFromGroup, ReduceScatterToGroup
from ms_models.parallel.collectives.one_source import Broadcast, Transfer

__all__ = [
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "CopyToGroup",
    "GatherForSharded",
    "GatherFromGroup",
    "ReduceFromGroup",
    "ReduceScatterToGroup",
    "Shift",
    "Transfer",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "copy_to_group",
    "forget_cells",
    "gather_for_sharded",
    "gather_from_group",
    "has_native_collectives",
    "reduce_from_group",
    "reduce_scatter_to_group",
    "shift",
    "transfer",
]
