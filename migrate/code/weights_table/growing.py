"""How long a list of modules is while a constructor appends to it, some modules under conditions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from migrate.code.weights_table.contents import opposite

_MOST = 8
"""So many lengths are followed."""


@dataclass
class Growing:
    """The lengths that a list may have."""

    when: tuple[str, ...]
    """Conditions under which the list was made."""
    lengths: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Further conditions, one of which holds -> length."""

    def append(self, when: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]] | None:
        """Places of a module that is appended under conditions, with all conditions of each; None: cannot be told."""
        further = when[len(self.when) :]
        if when[: len(self.when)] != self.when or len(further) > 1:
            return None
        places, after = [], {}
        for held, length in self.lengths.items():
            if not further or further[0] in held:
                places.append((held, length))
                after[held] = length + 1
            elif opposite(further[0]) in held:
                after[held] = length
            else:
                places.append(((*held, further[0]), length))
                after[(*held, further[0])] = length + 1
                after[(*held, opposite(further[0]))] = length
        if len(after) > _MOST:
            return None
        self.lengths = after
        return ((self.when + held, length) for held, length in places)
