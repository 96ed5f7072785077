"""When what has died is started again, without a clock."""
