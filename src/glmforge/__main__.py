"""`python -m glmforge`, which is also what torchrun starts: `torchrun -m glmforge train CONFIG`."""

from glmforge.cli import main

if __name__ == "__main__":
    main()
