"""The client: `Queue` and `AsyncQueue`, thin faces over operations written once."""
