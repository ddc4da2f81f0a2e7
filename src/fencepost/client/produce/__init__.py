"""The producer's parts: queues that callers fill, and the send thread that empties them."""
