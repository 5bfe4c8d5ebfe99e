"""What the benchmarks of attention are made of."""

import logging
import os

# A pool of compiling processes would run beside what is measured.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Every process that compiles on a machine without a GPU says that there is none.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
