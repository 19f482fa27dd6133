"""Reading libcst trees."""
