"""What the table knows about a torch name, and how much of torch it covers."""
