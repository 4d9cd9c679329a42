"""`python -m ballast` is `ballast`."""

import sys

from ballast.cli import main

sys.exit(main())
