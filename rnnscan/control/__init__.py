"""Branches and sub-nets over named values. The names imported here are public."""

from rnnscan.control.cond_net import cond_net as cond_net
from rnnscan.control.do_net import do_net as do_net
