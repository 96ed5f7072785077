"""The auditor's own reading rule, and how old verdicts may be. Pure."""
