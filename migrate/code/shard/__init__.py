"""`msmigrate code --shard`: which layers can be cut over tensor parallel ranks, and the changes that cut them."""
