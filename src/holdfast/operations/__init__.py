"""Store operations, each written once for both engines as `async def fn(tx, ...)`."""
