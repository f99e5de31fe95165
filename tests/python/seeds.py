"""The seed of a run's random inputs."""

import os
import random

NAME = "FLASHMESH_TEST_SEED"
# Kept in the environment, for the processes that share a run's files among them.
SEED = int(os.environ.setdefault(NAME, str(random.randrange(2**32))))
