"""The supported model families: the properties of their files and texts. Data only; the shared code that uses it does
not depend on the family."""
