"""The demo: a small business on an embedded Postgres, told by counts that must come out even.

business    the handlers of two contexts, as worker processes run them
producer    business transactions that publish, and a ledger of them
crew        worker processes: started, killed, stopped
outbox      what the tour asks of the database
steps       the steps in their order
tour        all of it on a Postgres that is gone afterwards
counts      what came of it, and whether that is clean
telling     lines and bars
patience    waiting for what gives no signal
"""
