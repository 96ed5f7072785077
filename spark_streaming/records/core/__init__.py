"""The auditor's own reading rule. Pure."""
