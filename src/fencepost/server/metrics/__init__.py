"""What the server tells about itself.

state.py      the server's state at one moment, read on the loop
families.py   that state as Prometheus metrics
"""
