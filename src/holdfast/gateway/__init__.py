"""The model gateway: the API of a model server, with every request to generate as a durable job."""
