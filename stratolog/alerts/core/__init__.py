"""Which alerts stand, from verdicts and the times of reports. Pure."""
