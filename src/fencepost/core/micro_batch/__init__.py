"""Exactly-once micro-batches, without Spark and without sockets.

protocol.py   the steps of a micro-batch, and where to resume after any of them failed
zombies.py    drivers and tasks that were replaced and still try to write
"""
