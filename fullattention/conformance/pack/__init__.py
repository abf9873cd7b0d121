"""The portable pack: cases, oracle and bounds as files, for implementations in any language."""

from fullattention.conformance.pack.check import PackVerdict, check_pack
from fullattention.conformance.pack.layout import CLASSES, pack_id
from fullattention.conformance.pack.write import write_pack

__all__ = ["CLASSES", "PackVerdict", "check_pack", "pack_id", "write_pack"]
