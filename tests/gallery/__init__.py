"""Published PyMC models, written as their authors write them, with the verdict that each must get.

The zoo (`zoo`, `refusal_zoo`) is made of models that touch one part of the library each. The gallery is made
of models that people publish: PyMC's example gallery, Bambi's documentation, Stan's and NumPyro's example
models, the chapters of books. Names, dims and style are theirs; the data are synthetic, of the published
shape and small. Every entry has its source.

A topic is a module; what is refused stands beside what is accepted, since a model's second version on the
same page is often the way out of the first one's refusal.
"""

from gallery import (
    bambi,
    causal,
    choices,
    commerce,
    counts,
    groups,
    mixtures,
    multivariate,
    regressions,
    series,
    survival,
    textbooks,
    unsupported,
)
from gallery.registry import GALLERY, Entry

__all__ = ["GALLERY", "Entry"]

#: Every topic; naming them here keeps the imports, which fill the registry.
TOPICS = (
    bambi,
    causal,
    choices,
    commerce,
    counts,
    groups,
    mixtures,
    multivariate,
    regressions,
    series,
    survival,
    textbooks,
    unsupported,
)
