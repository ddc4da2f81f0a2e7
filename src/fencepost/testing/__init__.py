"""For tests, ours and yours: a server as a fixture, files that fail, a clock wound by hand, a proxy that cuts lines.

pytest_plugin.py   a real broker in pytest: the fixture `fencepost_server`
proxy.py           between a client and its brokers: cuts, delays, swallows, duplicates
scripted/          a cluster in memory whose answers a test can script
clock.py           stands still until a test winds it
files.py           a disk that fails on purpose, and one whose power goes out
history.py         what clients saw against what transactions promise
"""
