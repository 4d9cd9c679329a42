"""Models from a hub: which files a name stands for, fetching them, and what was fetched before."""
