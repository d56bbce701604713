"""The rules as pure functions: no clock, no input or output, no imports beyond the standard library."""
