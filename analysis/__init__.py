"""What a hidden state holds, what behaviours there are, and what drives them."""

import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
