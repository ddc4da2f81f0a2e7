"""The client side: what talks to a fencepost server or an Apache Kafka cluster.

Writing
    producer.py, options.py, aio.py   what callers see, also from an event loop; what they can say
    bulk.py, record_size.py           tables as a whole; how large a record will be
    checks.py                         what cannot be meant is refused by its name, here and below
    queue.py, partition_queue.py      between the caller's threads and the send thread
    filling.py, waiting_room.py       records into batches; those that cannot be put into one yet
    ticket.py, failures.py            what `send` hands back; what failed and nobody has looked at
    sender.py, sending/               the send thread, and its parts
    stats.py                          what `Producer.stats` shows
    unclosed.py                       producers that nobody closed
    errands.py, lookback.py           what the send thread has others do; how doubt ends
    ids.py, resume.py                 ids that are saved, and going on from them
    transaction.py, transactional.py  a transaction as the caller sees it; its steps, by name
Reading
    reader.py, fetcher.py             what callers see; what fetches
Owning
    own.py, standby.py, hold.py       the API and its roads; active and standby; for its own sake
    owned_partitions.py               where an owner's records go
    owning.py, tenure.py, aftermath.py, shared_channel.py    on fencepost's server: by the connection of the data
    own_kafka.py, owner_topic.py, implicit.py                on Apache Kafka: by transactional ids
    session.py, line.py, hold_kafka.py                       there: signs of life, waiting in line, for its own sake
Administration
    admin.py, admin_groups.py, admin_transactions.py, results.py
    lasting.py                        topics of fencepost's own, with enough replicas to survive a broker
Reaching a cluster
    settings.py, security.py, config_names.py    addresses, trust, and the names that others use for them
    opening.py, sasl.py                          how every connection begins
    brokers.py, connection.py, network.py, metadata.py    connections that never block; what is known of the cluster
    channel.py, routing.py, link.py              one that blocks: questions, whom to ask, batches
    clock.py, closing.py, forking.py             time as a value; `with`; what a fork must not tear apart
    patience.py                                  waiting for a server that is away
"""
