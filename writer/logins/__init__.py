"""How headrace logs in, once for brokers and registries: secrets, sources of tokens, exchanges of SASL.

Below the connection that carries an exchange. A task has these from the driver: each can be pickled, and none keeps a
token or an open library in what is pickled.
"""
