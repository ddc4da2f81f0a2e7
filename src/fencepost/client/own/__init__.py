"""`own` on the client: claims on fencepost's server and on Apache Kafka, and `hold`.

claim.py                             the API, the same for both kinds of server
server.py                            fencepost's server: the connection that carries the data is the owner
kafka.py, kafka_topic.py             Apache Kafka: transactional ids are owners, recorded in a compacted topic
kafka_session.py, kafka_line.py      Apache Kafka: sessions, and waiting in line
hold.py, kafka_hold.py               own a resource without writing or reading
owned_partitions.py                  the partitions that an owner writes
"""
