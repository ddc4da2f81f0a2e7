"""Reaching a cluster: settings, security, connections, metadata, and finding the broker to ask."""
