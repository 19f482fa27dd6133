"""What a name means: scopes, imports, symbols of the whole repository."""
