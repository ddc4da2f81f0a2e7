"""Connections: accept them, cut bytes into frames, bound memory, route requests to their handlers."""
