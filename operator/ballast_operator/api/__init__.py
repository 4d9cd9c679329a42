"""The custom resource: its types, from which the CRD is generated."""
