"""What users are promised of delivery, whatever carries it: Postgres alone, NATS or Redis, one table or partitions."""
