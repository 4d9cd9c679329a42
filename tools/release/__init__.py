"""Builds a release: packages, images, chart, bills of materials, notes and checksums in one folder."""
