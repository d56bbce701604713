"""Store operations shared by all engines, each written once as a script."""
