"""The operator's limits for services. Pure."""
