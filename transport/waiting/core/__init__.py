"""What a pause is, without a clock."""
