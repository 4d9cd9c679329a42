"""The control loop: observe, decide, apply, report. Decisions are pure; effects are in `apply` and `reconcile`."""
