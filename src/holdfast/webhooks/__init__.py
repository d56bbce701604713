"""Sending webhooks: reading the event log, deliveries over HTTP, and the check of addresses.

Only this package needs the extra `holdfast[webhooks]`; it is imported by a running worker or server.
"""
