"""The client side: everything that talks to a fencepost server or an Apache Kafka cluster.

Users import the modules here. Each folder holds one concern and imports only those to its right:
own → produce → transactions → read → admin → cluster.

producer.py     `Producer`: choose a partition, enqueue, wait
reader.py       `Reader`: records of topics or partitions
processor.py    `Processor`: a reader in a group and its transactional producer, exactly once
batch.py        `Batch`, the records of one of its transactions, and `Output`, what the block sends
async_processor.py  `AsyncProcessor`, the same for asyncio
aio.py          `AsyncProducer` and `AsyncReader`, for programs that live in an event loop
admin_client.py  `Admin`: topics, offsets, configs, groups, transactions
standby.py      active and standby in one loop
own/            claims, on both kinds of server
produce/        queues and the send thread
read/           fetching
transactions/   the coordinator's requests, shared writers, compacted topics
admin/          the requests behind `Admin`
cluster/        settings, security, connections, metadata, routing
"""
