"""Who gives the names of model types: libraries, a repository, the packages it imports, remote code."""
