"""Transactions: the coordinator's requests, writers that share one transaction, progress topics."""
