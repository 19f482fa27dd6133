"""Everything that knows about ranks: the mesh, the collectives, and the layers that are cut over ranks."""
