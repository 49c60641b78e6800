"""One harness for models of stateful operators: a job, what it emits, where its state lies, and its histories.

A model file gives the operator, how rows are drawn, the plain model and the steps that compare the two.
"""
