"""`own` on the client: claims on fencepost's server and on Apache Kafka, and holding a resource alone.

claim.py                             the API, the same for both kinds of server
server.py, shared_channel.py         on fencepost's server: the connection that carries the data owns
kafka.py, kafka_topic.py             on Apache Kafka: transactional ids own, and a compacted topic remembers
kafka_session.py, kafka_line.py      there: signs of life, and waiting in line
hold.py, hold_kafka.py               hold a resource without writing or reading
owned_partitions.py                  where an owner's records go
"""
