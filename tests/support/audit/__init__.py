"""The audit without Kafka: its model in Python, one shard audited in memory, the Spark session that all tests share."""
