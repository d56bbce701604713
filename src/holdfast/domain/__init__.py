"""The rules, pure: no clock, no input or output, nothing but the standard library."""
