"""The drill that changes keys under load: passwords, certificates, users' secrets, delegation tokens.

What belongs here: ``rotate_keys``, the drill; ``secure_stack``, the stack of its own that it runs on; ``signed_load``,
writers by each way in, which change to new keys as a user would. What must hold is in ``core``.
"""
