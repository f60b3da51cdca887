"""The same publish on other drivers: psycopg (sync), asyncpg, SQLAlchemy 2 (async and sync), Django.

Each module needs its driver and imports no other; import the one you use.
"""
