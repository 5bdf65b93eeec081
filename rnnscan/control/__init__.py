"""Loops that stop by a condition, branches and renamed functions, with gradients. What is imported here is public."""

from rnnscan.control.cond_net import cond_net as cond_net
from rnnscan.control.do_net import do_net as do_net
from rnnscan.control.scan_until import scan_until as scan_until
from rnnscan.control.while_net import while_net as while_net
