"""Access to a cluster from outside.

REST client, job handles, clusters of local processes, executors for `env.execute`.
"""
