"""The embedded server: asyncio around `core`, `wire` and `log`.

`listener` accepts connections, `connection` cuts frames and keeps answers in order, `router` finds the handler in
`api/`, the handlers ask the `broker`, which holds the catalogue of topics, the open partitions and the store.
"""
