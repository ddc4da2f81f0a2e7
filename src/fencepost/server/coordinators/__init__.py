"""Groups, transactions, producer ids and owners: the state that coordinators keep in the store."""
