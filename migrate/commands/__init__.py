"""The commands, a file for each job; `migrate.cli` puts them together."""
