"""Security of the server: logins, users, ACLs and quotas. The rules are in `core.security` and
`core.quotas`.

sasl.py         the server's side of PLAIN and SCRAM, as steps without I/O
logins.py       logins of connections: password checks in threads, and slower answers after failures
tokens.py       the tokens of OAUTHBEARER
users.py        the users' credentials in the store
authorizer.py   the ACLs in the store, and the decisions
quotas.py       the quotas in the store, and what clients have used of them
audit.py        the audit log: a bounded queue and a thread
audit_places.py its file and its topic
"""
