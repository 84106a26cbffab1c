"""The paper's statements as functions, and the certificate of a run. Public as ``capo.theory``.

Every lemma function returns the two sides of its statement (:class:`Sides`), ready to be inspected, plotted or
tested; :func:`certify` checks them along a run.
"""

from capo.tabular.theory import lemmas, limits, rates
from capo.tabular.theory.certificate import Certificate, Line
from capo.tabular.theory.lemmas import *  # noqa: F403
from capo.tabular.theory.limits import *  # noqa: F403
from capo.tabular.theory.rates import *  # noqa: F403
from capo.tabular.theory.theorems import certify

__all__ = ["Certificate", "Line", "certify"]
__all__ += lemmas.__all__
__all__ += limits.__all__
__all__ += rates.__all__
