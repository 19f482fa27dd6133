"""The semantic passes, one file each; `migrate.code.rewrite` runs them in one traversal."""
