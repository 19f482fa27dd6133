"""A call and a row of the table: arguments bound, the template filled in."""
