"""The worker: runs jobs in slots, renews their leases and maintains the store. Uses only the client."""
