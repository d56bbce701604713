"""Measurements of Holdfast beside its peers. Nothing here is shipped, and no test depends on how fast it is."""
