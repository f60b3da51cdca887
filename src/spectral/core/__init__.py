"""What every context stands on: events, migrations, and a Postgres to develop with."""
