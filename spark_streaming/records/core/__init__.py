"""The auditor's own reading rule, the headers that it takes, and how old verdicts may be. Pure."""
