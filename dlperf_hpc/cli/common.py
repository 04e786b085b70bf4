"""The names of ``options`` and ``messages`` in one place."""

from dlperf_hpc.cli.messages import run as run
from dlperf_hpc.cli.options import add_external_options as add_external_options
from dlperf_hpc.cli.options import cache as cache
from dlperf_hpc.cli.options import parser as parser
from dlperf_hpc.cli.options import rule as rule
from dlperf_hpc.cli.options import stated_settings as said

__all__ = ["add_external_options", "cache", "parser", "rule", "run", "said"]
