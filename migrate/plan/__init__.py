"""`msmigrate plan`: which parallel layouts a model fits in, what each costs, and why."""
