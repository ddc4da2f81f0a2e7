"""Test tools for users: a server as a fixture, and a checker of histories.

pytest_plugin.py   a real broker in pytest: the fixture `fencepost_server`
history.py         a checker of what clients saw against the guarantees of transactions
"""
