"""Backends whose arithmetic is wrong in one way, under the package's own layer policy."""

from tests.zoo.faulty.cheat import CHEAT
from tests.zoo.faulty.combined import COMBINED
from tests.zoo.faulty.contract import CONTRACT
from tests.zoo.faulty.determinism import DETERMINISM
from tests.zoo.faulty.dropout import DROPOUT
from tests.zoo.faulty.gradient import GRADIENT
from tests.zoo.faulty.layout import LAYOUT
from tests.zoo.faulty.limits import LIMITS
from tests.zoo.faulty.mask import MASK
from tests.zoo.faulty.precision import PRECISION
from tests.zoo.faulty.scale import SCALE
from tests.zoo.faulty.softmax import SOFTMAX
from tests.zoo.faulty.special import SPECIAL
from tests.zoo.faulty.state import STATE

FAULTY_BACKENDS = (
    *SCALE,
    *MASK,
    *SOFTMAX,
    *LAYOUT,
    *PRECISION,
    *DROPOUT,
    *CONTRACT,
    *STATE,
    *SPECIAL,
    *DETERMINISM,
    *CHEAT,
    *GRADIENT,
    *LIMITS,
    *COMBINED,
)
