"""Running jobs: the worker, its slots, its leases, its upkeep. Built only on the client."""
