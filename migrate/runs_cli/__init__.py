"""Commands about data and runs, one file each; `migrate.cli` puts them together."""
