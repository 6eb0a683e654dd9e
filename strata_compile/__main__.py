"""python -m strata_compile."""

import sys

from strata_compile.cli import main

sys.exit(main())
