"""The demonstration: workers that die and jobs that survive."""
