"""Talking to a cluster from outside.

REST client, job handles, clusters as local processes, executors for `env.execute`.
"""
