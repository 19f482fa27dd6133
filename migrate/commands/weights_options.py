"""The options of `msmigrate weights`, in the groups of its help: the source, the target, and how the work is done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SOURCE, TARGET, TABLE, HOW = "Source", "Target", "Any state dict (--family none)", "How"

Source = Annotated[Path, typer.Argument(exists=True, help="Checkpoint of any container.")]

# What the source does not say by itself
Container = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="hf, sharded, mindspore, strategy, iteration or ckpt, where the source could be several.",
        rich_help_panel=SOURCE,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", help="Model directory with config.json, where the source has none.", rich_help_panel=SOURCE
    ),
]
FamilyName = Annotated[
    str | None,
    typer.Option("--family", help="Family file to use; `none` for --table.", rich_help_panel=SOURCE),
]
Spelled = Annotated[
    str | None,
    typer.Option("--from-spelling", help="Of the names, where they fit several spellings.", rich_help_panel=SOURCE),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        help="Pattern of names that may be left out although the model has no such tensor, "
        "or lose padding that is not zero.",
        rich_help_panel=SOURCE,
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--key", help="Where in a pickled file the state dict is, as `model.ema`.", rich_help_panel=SOURCE),
]
Strategies = Annotated[
    Path | None,
    typer.Option("--strategy", help="Strategy file or folder of a source of rank_N.", rich_help_panel=SOURCE),
]
Ending = Annotated[
    str | None,
    typer.Option(
        "--ending",
        help="How file names in rank_N folders end, where those have several steps.",
        rich_help_panel=SOURCE,
    ),
]
RedundancyRemoved = Annotated[
    bool,
    typer.Option("--redundancy-removed", help="Ranks of the source lack what others hold.", rich_help_panel=SOURCE),
]

# What is written
Out = Annotated[Path, typer.Option("-o", "--out", help="Directory to write.", rich_help_panel=TARGET)]
To = Annotated[
    str,
    typer.Option(
        "--to", help="sharded (ms_models), hf, mindspore, strategy, iteration or ckpt.", rich_help_panel=TARGET
    ),
]
Tp = Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel ranks.", rich_help_panel=TARGET)]
Pp = Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages.", rich_help_panel=TARGET)]
Vpp = Annotated[
    int,
    typer.Option(
        "--vpp",
        min=1,
        help="Chunks of layers per pipeline stage (interleaved schedule).",
        rich_help_panel=TARGET,
    ),
]
Dp = Annotated[
    int, typer.Option("--dp", min=1, help="Data-parallel ranks (replicas share files).", rich_help_panel=TARGET)
]
Ep = Annotated[
    int, typer.Option("--ep", min=1, help="Expert-parallel ranks, of the data-parallel ones.", rich_help_panel=TARGET)
]
Zero = Annotated[
    int,
    typer.Option(
        "--zero",
        min=0,
        max=3,
        help="ZeRO stage: 1 and 2 cut optimizer state over dp, 3 weights too.",
        rich_help_panel=TARGET,
    ),
]
Multiple = Annotated[
    int,
    typer.Option(
        "--vocab-multiple",
        min=1,
        help="Pad the vocabulary to a multiple of this times tp.",
        rich_help_panel=TARGET,
    ),
]
Spelling = Annotated[
    str,
    typer.Option("--spelling", help="Names and fusing to write: hf, hf_fused, mindformers.", rich_help_panel=TARGET),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Round weights to F32, BF16, F16 or F64; kept by default.",
        rich_help_panel=TARGET,
    ),
]
WeightsOnly = Annotated[
    bool,
    typer.Option("--weights-only", help="Leave optimizer state and counters out.", rich_help_panel=TARGET),
]
ShardSize = Annotated[
    int | None,
    typer.Option("--max-shard-size", min=1, help="Bytes per file, with --to hf or mindspore.", rich_help_panel=TARGET),
]
ToStrategy = Annotated[
    Path | None,
    typer.Option(
        "--to-strategy",
        help="With --to strategy: strategy files to cut by, not a layout.",
        rich_help_panel=TARGET,
    ),
]
Crc = Annotated[
    bool, typer.Option("--crc", help="Write MindSpore's checksums (mindspore, ckpt).", rich_help_panel=TARGET)
]
AsCkpt = Annotated[bool, typer.Option("--as-ckpt", help="With --to strategy: .ckpt files.", rich_help_panel=TARGET)]
RemoveRedundancy = Annotated[
    bool,
    typer.Option(
        "--remove-redundancy",
        help="With --to strategy: each piece in one rank's file only.",
        rich_help_panel=TARGET,
    ),
]
Mindformers = Annotated[
    str | None,
    typer.Option(
        "--mindformers",
        help="With --to strategy: MindFormers' file names before 2.x, with this prefix.",
        rich_help_panel=TARGET,
    ),
]
Epoch = Annotated[
    int,
    typer.Option("--epoch", min=0, help="With --mindformers: the epoch in file names.", rich_help_panel=TARGET),
]
Step = Annotated[
    int,
    typer.Option("--step", min=0, help="With --to iteration or --mindformers: the step.", rich_help_panel=TARGET),
]

# Weights of a converted repository
Table = Annotated[
    Path | None,
    typer.Option("--table", help="weights_table.json of the converted repository.", rich_help_panel=TABLE),
]
Module = Annotated[str | None, typer.Option("--module", help="A module that a recipe built; or", rich_help_panel=TABLE)]
OfClass = Annotated[str | None, typer.Option("--class", help="a class, as `model.GPT`,", rich_help_panel=TABLE)]
Arguments = Annotated[
    str | None,
    typer.Option("--arguments", help="with its constructor's arguments, a JSON object.", rich_help_panel=TABLE),
]

# How
Budget = Annotated[
    int, typer.Option("--memory-budget", min=1, help="Memory to stay within, in MiB.", rich_help_panel=HOW)
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Copying threads; the cores, at most 4, by default.", rich_help_panel=HOW),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.", rich_help_panel=HOW)]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on where a killed run of the same conversion stopped.", rich_help_panel=HOW),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.", rich_help_panel=HOW)]
