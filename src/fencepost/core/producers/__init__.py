"""The rules of one producer and partition: sequences, duplicates, batches in flight, aborted transactions."""
