"""The control loop: observe, decide, apply, report. `reconcile` is one pass over one service.

`deciding` and `reporting` are pure; `observing` only reads from the cluster, and `applying` writes to it.
"""
