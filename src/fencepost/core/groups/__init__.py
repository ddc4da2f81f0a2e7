"""The rules of consumer groups: the classic protocol, the one of KIP-848, assignors and committed offsets."""
