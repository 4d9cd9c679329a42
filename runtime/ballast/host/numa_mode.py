"""The values of the option `numa`."""

from typing import Literal

NumaMode = Literal["auto", "single", "off"]
"""auto: a share of the threads and of the weights on each node; single: all of them on one node where its cores are
enough for the threads, else as auto; off: nothing is bound to a node."""
