"""Test tools, for us and for users: a server as a fixture, files that fail, a manual clock, a proxy that cuts
connections.

pytest_plugin.py   a real broker in pytest: the fixture `fencepost_server`
proxy.py           a proxy between a client and its brokers that cuts, delays, swallows and duplicates
scripted/          a cluster in memory with scripted responses
clock.py           a clock that stands still until a test advances it
files.py           a disk with injected failures and power failures
history.py         a checker of what clients saw against the guarantees of transactions
"""
