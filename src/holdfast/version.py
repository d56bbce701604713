"""The version of this code, which the schema compares with the lowest version it accepts."""

__version__ = "0.1.0"
