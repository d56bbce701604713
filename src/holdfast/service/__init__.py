"""The HTTP service: one route table, an ASGI application, and the server that runs it."""
