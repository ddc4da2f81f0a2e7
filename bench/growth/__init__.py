"""How cost grows: records/s, memory and CPU against the number of partitions, producers, connections and group members,
the size of a record, and the size of the log. One curve per client and broker, one picture per question."""
