"""Models from a hub: resolving names, downloading files, and the local store of downloads."""
